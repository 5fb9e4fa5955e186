"""Trains under DDP with gloo in every way of the table, and saves the records.

    python two_ranks.py RANK STORE OUTPUT

Not a test itself: the tests start two of these and judge what both wrote.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

from helpers.training import (
    Batches,
    Recording,
    Witness,
    cross_entropy,
    recording,
    tiny_model,
    tokens,
    windows,
)

RANKS = 2
WINDOWS = 4

Loss = Callable[[Any, Any], Tensor]


def _sum_over(divisor: Callable[[int, int], float]) -> Callable[[Batches], Loss]:
    """Sum over tokens / divisor(tokens of this rank, tokens of all ranks)."""

    def of_window(window: Batches) -> Loss:
        mine = sum(map(tokens, window))
        everyones = torch.tensor(mine)
        dist.all_reduce(everyones)
        by = divisor(mine, int(everyones))
        return lambda model, batch: cross_entropy(model, batch, reduction="sum") / by

    return of_window


def _mean_of_means(window: Batches) -> Loss:
    return lambda model, batch: cross_entropy(model, batch) / len(window)


ROWS: dict[str, Callable[[Batches], Loss]] = {
    "right": _sum_over(lambda mine, all_ranks: all_ranks / RANKS),
    "own count": _sum_over(lambda mine, all_ranks: mine),
    "averaged again": _sum_over(lambda mine, all_ranks: all_ranks),
    "multiplied twice": _sum_over(lambda mine, all_ranks: all_ranks / RANKS**2),
    "never divided": _sum_over(lambda mine, all_ranks: 1),
    "mean of means": _mean_of_means,
}


def fair_between_ranks(rank: int) -> list[Batches]:
    """Windows of two micro-batches, ten tokens on either rank, split in two ways."""
    return windows(WINDOWS, seed=rank, lengths=(((2,), (5, 3)), ((4,), (6,))))


def train(loss_of: Callable[[Batches], Loss], data: list[Batches], k: int) -> dict[str, Any]:
    """The usual loop: the gradients are synchronised by the last micro-batch of each window."""
    model = tiny_model()
    wrapped = DistributedDataParallel(model)
    with recording() as recorded:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        witness = Witness(model, optimizer)
        for window in data:
            loss = loss_of(window[:k])
            for index, batch in enumerate(window[:k]):
                with nullcontext() if index == k - 1 else wrapped.no_sync():
                    loss(wrapped, batch).backward()
            optimizer.step()
            optimizer.zero_grad()
    return {
        "lines": recorded.lines(),
        "steps": [(step.parameters, step.gradient) for step in witness.steps],
        "windows": [window[:k] for window in data],
    }


def twenty_steps(watched: AbstractContextManager[object], data: list[Batches]) -> list[Tensor]:
    """Dropout, no_sync, clipping and AdamW: the parameters and the norms that this leaves."""
    torch.manual_seed(dist.get_rank())
    model = nn.Sequential(tiny_model(), nn.Dropout(0.3))
    wrapped = DistributedDataParallel(model)
    norms = []
    with watched:
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        for window in data:
            for index, batch in enumerate(window):
                with nullcontext() if index == len(window) - 1 else wrapped.no_sync():
                    (cross_entropy(wrapped, batch) / len(window)).backward()
            norms.append(nn.utils.clip_grad_norm_(model.parameters(), 0.3))
            optimizer.step()
            optimizer.zero_grad()
    return [*(p.detach() for p in model.parameters()), *norms, torch.get_rng_state()]


def uneven(divide_by_initial_world_size: bool, hook: Any = None) -> dict[str, Any]:
    """In a `Join` context, whose rank 1 has data for two of four steps."""
    model = tiny_model()
    wrapped = DistributedDataParallel(model)
    if hook is not None:
        wrapped.register_comm_hook(None, hook)
    data = windows(WINDOWS if dist.get_rank() == 0 else 2, seed=dist.get_rank())
    with recording() as recorded, wrapped.join(divide_by_initial_world_size):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        witness = Witness(model, optimizer)
        for window in data:
            cross_entropy(wrapped, window[0]).backward()
            optimizer.step()
            optimizer.zero_grad()
    return {
        "lines": recorded.lines(),
        "steps": [(step.parameters, step.gradient) for step in witness.steps],
        "windows": [window[:1] for window in data],
    }


def with_and_without(rank: int) -> dict[str, Any]:
    """Twenty steps twice: with hooks, and without."""
    data, recorded = windows(20, seed=rank), Recording()
    watched = twenty_steps(recording(recorded), data)
    return {
        "watched": watched,
        "alone": twenty_steps(nullcontext(), data),
        "lines": recorded.lines(),
    }


def main(rank: int, store: str, output: str) -> None:
    """All rows, one after the other, in one process group."""
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=RANKS)
    data = windows(WINDOWS, seed=rank)
    rows = {name: train(loss_of, data, k=4) for name, loss_of in ROWS.items()}
    rows["mean of means, fair ranks"] = train(_mean_of_means, fair_between_ranks(rank), k=2)
    rows["right, K = R"] = train(ROWS["right"], data, k=2)
    rows["averaged again, K = R"] = train(ROWS["averaged again"], data, k=2)
    rows |= {"join, all": uneven(True), "join, active": uneven(False)}
    rows["join, comm hook"] = uneven(False, allreduce_hook)
    rows["twenty steps"] = with_and_without(rank)
    torch.save(rows, output)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3])
