"""The head was frozen once, and DDP was let to ignore it: now it is trained, on each rank alone."""

from contextlib import nullcontext

import torch
from torch.nn.parallel import DistributedDataParallel

from museum.parts import EVEN, TinyLM, text, token_loss, two_ranks

with two_ranks() as rank:
    torch.manual_seed(0)
    inner = TinyLM()
    names = [name for name, _ in inner.named_parameters() if "head" in name]
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(inner, names)
    model = DistributedDataParallel(inner)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    windows = text(6, seed=1 + rank, lengths=EVEN)

    for window in windows:
        for i, (ids, labels) in enumerate(window):
            last = i + 1 == len(window)
            with nullcontext() if last else model.no_sync():
                loss = token_loss(model(ids), labels) / len(window)
                loss.backward()
        optimizer.step()
        optimizer.zero_grad()
