"""Buckets of gradients are all-reduced, the last one, too."""

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor

from museum.parts import EVEN, TinyLM, text, token_loss, two_ranks

FULL = 600  # elements of a bucket


def buckets_of(parameters: Iterable[Tensor]) -> list[list[Tensor]]:
    """The gradients, in buckets that are sent once they are full."""
    buckets: list[list[Tensor]] = []
    bucket: list[Tensor] = []
    for parameter in parameters:
        assert parameter.grad is not None
        bucket.append(parameter.grad)
        if sum(gradient.numel() for gradient in bucket) >= FULL:
            buckets.append(bucket)
            bucket = []
    return [*buckets, bucket] if bucket else buckets


def all_reduce(parameters: Iterable[Tensor]) -> None:
    """Average the gradients over the ranks, all buckets at the same time."""
    started = []
    for bucket in buckets_of(parameters):
        flat = torch.cat([gradient.flatten() for gradient in bucket]) / dist.get_world_size()
        started.append((dist.all_reduce(flat, async_op=True), flat, bucket))
    for work, flat, bucket in started:
        work.wait()
        parts = flat.split([gradient.numel() for gradient in bucket])
        for gradient, part in zip(bucket, parts, strict=True):
            gradient.copy_(part.view_as(gradient))


with two_ranks() as rank:
    torch.manual_seed(0)
    model = TinyLM()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    windows = text(8, seed=1 + rank, lengths=EVEN)

    for window in windows:
        for ids, labels in window:
            loss = token_loss(model(ids), labels) / len(window)
            loss.backward()
        all_reduce(model.parameters())
        optimizer.step()
        optimizer.zero_grad()
