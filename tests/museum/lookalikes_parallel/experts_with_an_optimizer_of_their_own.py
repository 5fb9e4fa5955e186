"""Each rank has one of two experts, which DDP ignores, and steps it with an optimizer apart."""

from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from museum.parts import Experts, summed, text, token_loss, two_ranks, valid

with two_ranks() as rank:
    torch.manual_seed(0)
    inner = Experts(dist.group.WORLD, rank)
    names = [name for name, _ in inner.named_parameters() if name.startswith("experts")]
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(inner, names)
    model = DistributedDataParallel(inner)
    dense = [p for name, p in inner.named_parameters() if name not in names]
    optimizer = torch.optim.SGD(dense, lr=0.3)
    of_experts = torch.optim.SGD(inner.experts.parameters(), lr=0.3)

    for window in text(8, seed=3 * rank):
        tokens = summed(sum(valid(labels) for _, labels in window))
        for i, (ids, labels) in enumerate(window):
            with model.no_sync() if i + 1 < len(window) else nullcontext():
                loss = token_loss(model(ids), labels, "sum") * 2 / tokens
                loss.backward()
        for parameter in inner.experts.parameters():
            assert parameter.grad is not None
            parameter.grad /= 2  # it has the gradients of both ranks' tokens
        for each in (optimizer, of_experts):
            each.step()
            each.zero_grad()
