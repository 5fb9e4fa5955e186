"""Trains on two ranks in the ways that are not plain DDP, and saves the records.

    python parallel_ranks.py RANK STORE OUTPUT

Not a test itself: the tests start two of these and judge what both wrote.
"""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.nn.parallel import DistributedDataParallel

from helpers.pytorch import FSDP2_ON_A_CPU, older_than
from helpers.training import (
    Batches,
    Recording,
    cross_entropy,
    recording,
    tiny_model,
    tokens,
    windows,
)

RANKS = 2
STEPS = 4

Loop = Any  # of a model, its data, and whether to be right


def _loss(model: Any, batch: Any, window: Batches, right: bool) -> Tensor:
    """A part of the mean over all ranks' tokens, given that the ranks are averaged; or not."""
    if not right:
        return cross_entropy(model, batch) / len(window)
    everyones = torch.tensor(sum(map(tokens, window)))
    dist.all_reduce(everyones)
    return cross_entropy(model, batch, reduction="sum") * RANKS / everyones


def by_hand(model: nn.Module, data: list[Batches], right: bool) -> Any:
    """No wrapper: the loop averages the gradients itself, after the last backward."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for window in data:
        for batch in window:
            _loss(model, batch, window, right).backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            assert parameter.grad is not None
            parameter.grad /= RANKS
        optimizer.step()
        optimizer.zero_grad()


def _in_hooks(model: nn.Module, data: list[Batches], right: bool, chosen: slice) -> None:
    """Hooks of the parameters average their gradients, in the chosen backwards of each window."""
    combines = False

    def combine(parameter: Tensor) -> None:
        if combines and parameter.grad is not None:
            dist.all_reduce(parameter.grad)
            parameter.grad /= RANKS

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(combine)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for window in data:
        indices = range(len(window))
        for index, batch in enumerate(window):
            combines = index in indices[chosen]
            _loss(model, batch, window, right).backward()
        optimizer.step()
        optimizer.zero_grad()


def parameter_hooks(model: nn.Module, data: list[Batches], right: bool) -> Any:
    """A hook of each parameter averages its gradient over the ranks, in the last backward."""
    _in_hooks(model, data, right, slice(-1, None))


def hooks_each_time(model: nn.Module, data: list[Batches], right: bool) -> Any:
    """The same in every backward."""
    _in_hooks(model, data, right, slice(None))


def hooks_too_early(model: nn.Module, data: list[Batches], right: bool) -> Any:
    """The same in the first backward alone."""
    _in_hooks(model, data, right, slice(1))


def comm_hook(model: nn.Module, data: list[Batches], right: bool) -> Any:
    """DDP with a hook of the user's own, of which there can be only one."""
    calls = []

    def averaged(bucket: Any) -> torch.futures.Future[Tensor]:
        calls.append(bucket.index())
        work: Any = dist.all_reduce(bucket.buffer() / RANKS, async_op=True)
        future: torch.futures.Future[Tensor] = work.get_future().then(lambda f: f.value()[0])
        return future

    wrapped = DistributedDataParallel(model)
    wrapped.register_comm_hook(None, lambda state, bucket: averaged(bucket))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for window in data:
        for index, batch in enumerate(window):
            with nullcontext() if index == len(window) - 1 else wrapped.no_sync():
                _loss(wrapped, batch, window, right).backward()
        optimizer.step()
        optimizer.zero_grad()
    return len(calls)


def fsdp2(model: nn.Module, data: list[Batches], right: bool) -> Any:
    """fully_shard, gradients reduced with the last micro-batch of each window."""
    for layer in (model[0], model[2], model):  # type: ignore[index]
        fully_shard(layer)
    sharded: Any = model
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for window in data:
        for index, batch in enumerate(window):
            sharded.set_requires_gradient_sync(index == len(window) - 1)
            _loss(model, batch, window, right).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.3)
        optimizer.step()
        optimizer.zero_grad()


def hsdp(model: nn.Module, data: list[Batches], right: bool) -> Any:
    """fully_shard where every rank holds the whole, reduced with each micro-batch."""
    fully_shard(model, mesh=init_device_mesh("cpu", (RANKS, 1), mesh_dim_names=("copies", "parts")))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for window in data:
        for batch in window:
            _loss(model, batch, window, right).backward()
        optimizer.step()
        optimizer.zero_grad()


def fsdp1(model: nn.Module, data: list[Batches], right: bool) -> Any:
    """The older wrapper, with no_sync."""
    wrapped = FullyShardedDataParallel(model, device_id=torch.device("cpu"), use_orig_params=True)
    optimizer = torch.optim.AdamW(wrapped.parameters(), lr=0.01)
    for window in data:
        for index, batch in enumerate(window):
            with nullcontext() if index == len(window) - 1 else wrapped.no_sync():
                _loss(wrapped, batch, window, right).backward()
        optimizer.step()
        optimizer.zero_grad()


LOOPS: list[Loop] = [by_hand, parameter_hooks, hooks_each_time, hooks_too_early, comm_hook, fsdp1]
if not older_than(FSDP2_ON_A_CPU):
    LOOPS += [fsdp2, hsdp]


def run(
    loop: Loop, right: bool, watched: AbstractContextManager[object], rank: int
) -> dict[str, Any]:
    """What a loop leaves behind."""
    model = tiny_model()
    with watched:
        returned = loop(model, windows(STEPS, seed=rank), right)
    local = [getattr(p, "_local_tensor", p).detach().clone() for p in model.parameters()]
    return {"parameters": local, "returned": returned}


def both(loop: Loop, right: bool, rank: int) -> dict[str, Any]:
    """With hooks, and without."""
    recorded = Recording()
    watched = run(loop, right, recording(recorded), rank)
    alone = run(loop, right, nullcontext(), rank)
    return {"watched": watched, "alone": alone, "lines": recorded.lines()}


def main(rank: int, store: str, output: str) -> None:
    """All loops, right and wrong, in one process group."""
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=RANKS)
    results = {
        (loop.__name__, right): both(loop, right, rank) for loop in LOOPS for right in (True, False)
    }
    torch.save(results, output)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3])
