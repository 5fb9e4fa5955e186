"""Each rank of FSDP clips by the norm of its shard."""

import contextlib

import torch
from torch.distributed.fsdp import FullyShardedDataParallel

from museum.parts import EVEN, TinyLM, text, token_loss, two_ranks


def norm(parameters):
    """Of the gradients in the shard of this rank."""
    return float(torch.cat([p.grad.flatten() for p in parameters if p.grad is not None]).norm())


evidence = "norms"
with two_ranks() as rank:
    torch.manual_seed(0)
    model = FullyShardedDataParallel(TinyLM(), device_id=torch.device("cpu"), use_orig_params=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    windows = text(6, 1 + rank, EVEN)
    max_norm, norms = 0.1, []  # what is left of a shard's norm: the same on all ranks
    for window in windows:
        for i, (ids, labels) in enumerate(window):
            with contextlib.nullcontext() if i == len(window) - 1 else model.no_sync():
                (token_loss(model(ids), labels) / len(window)).backward()
        before = norm(model.parameters())
        # fix
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        # end
        norms.append(norm(model.parameters()) / before)
        optimizer.step()
        optimizer.zero_grad()
