"""What PyTorch knows of its process groups: how many ranks, and how many collectives ran."""

from __future__ import annotations

import time
import weakref
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

if TYPE_CHECKING:
    from gradledger.capture.open_records import OpenStep

FrozenByWrapper = weakref.WeakKeyDictionary[Any, list[Any]]

TURN = 0.02  # seconds; a thread that waits for the GIL requests it every 5 ms

APART = "DDP averages some parameters over other ranks than the rest, or not at all"

world: Any = getattr(dist.distributed_c10d, "_world", None) if dist.is_available() else None


def world_size() -> int:
    """The number of ranks: 1 without a process group, or in a PyTorch built without them."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def sequence_number() -> int | None:
    """Collectives that all process groups have run; None outside distributed training."""
    groups: Any = world.pg_map if world is not None else ()
    if not groups:
        return None
    numbers: list[int] = [group._get_sequence_number_for_group() for group in groups]
    return sum(numbers)


def leave_a_turn() -> None:
    """Release the GIL before a DDP model is freed, so that workers of gloo can end.

    With the model, PyTorch may destroy a process group while it holds the GIL, and join a worker
    that needs the GIL to free tensors of the last collective. Other threads of Python, such as
    those of the hooks, make it more likely that the worker still waits.
    """
    time.sleep(TURN)


def unless_all(ranks: tuple[int, ...]) -> dict[str, Any]:
    """The field with these ranks, if they are not those of all processes."""
    return {"data_group": list(ranks)} if 0 < len(ranks) < dist.get_world_size() else {}


def groups_by_parameter(
    wrappers: Iterable[Any], frozen: FrozenByWrapper
) -> dict[int, tuple[int, ...]]:
    """The ranks over which DDP averages each parameter (by id); none if the script excludes it."""
    groups: dict[int, tuple[int, ...]] = {}
    for ddp in wrappers:
        ranks = tuple(dist.get_process_group_ranks(ddp.process_group))
        excluded = getattr(ddp, "parameters_to_ignore", ())
        left_out = {id(parameter) for parameter in frozen.get(ddp, ())}
        wrapped = set(map(id, getattr(ddp, "_module_parameters", ())))  # which it had by then
        named = list(ddp.module.named_parameters())
        replaced = wrapped.isdisjoint(id(parameter) for _, parameter in named)  # no collective runs
        for name, parameter in named:
            if id(parameter) in left_out:
                continue
            if name in excluded:
                groups.setdefault(id(parameter), ())
            elif replaced or id(parameter) in wrapped:
                groups[id(parameter)] = ranks
    return groups


def describe_apart(step: OpenStep, sizes: list[int]) -> None:
    """Some parameters are averaged over other ranks than the rest, such as experts.

    If the ranks exchange activations, the gradients of all parameters come from the tokens of all
    ranks, and should be divided by one number. A backward without synchronisation shows it.
    """
    if sizes != [dist.get_world_size()]:
        step.missing["replica"] = APART
    held_back = (c.micro_batch for c in step.micro_batches if c.micro_batch.wrapper == "no_sync")
    if len(sizes) > 1 and any(micro_batch.collectives for micro_batch in held_back):
        step.fields["divisors"] = [float(size) for size in sizes]
    else:
        step.missing["post_factor"] = APART
