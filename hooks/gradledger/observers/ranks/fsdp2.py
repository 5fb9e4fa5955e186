"""Reads what FSDP2 does with the gradients of one parameter group, a private class of PyTorch's.

Over which ranks, the placements of its parameters show: see ``data_ranks``.

In a backward, FSDP2 either accumulates a group's gradients outside ``.grad``, or reduces them: it
adds them up over the shards, then over the copies of hybrid sharding, and divides the sum. It
averages unless the script sets a factor (``set_gradient_divide_factor``; torchtitan sets 1).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary, WeakSet

from gradledger.capture.isolation import is_dtensor
from gradledger.capture.open_records import CountedMicroBatch, OpenMicroBatch, OpenStep

if TYPE_CHECKING:
    from gradledger.capture.windows import OptimizerWindow

MODULE = "torch.distributed.fsdp._fully_shard._fsdp_param_group"
CUSTOM = (
    "FSDP reduces the gradients by code of the script's ({}), whose factor cannot be read: "
    "run a few steps without it"
)
OLD_FACTOR = (
    "this version of PyTorch does not show the factor of set_reduce_scatter_divide_factor: use "
    "2.8 or newer, or run a few steps without the factor"
)
# PyTorch 2.13 divides twice there, once where nothing is to be scattered, if it forces sums.
ONE_SHARD = (
    "FSDP's divide factor is not known to be applied once where each rank holds all parameters: "
    "use set_gradient_divide_factor(1), and divide the loss"
)

MAX_HELD = 64  # micro-batches, for a loop that never reduces
MANY_HELD = (
    "FSDP adds the gradients of earlier windows, which it had not reduced, to those of this one: "
    f"more than {MAX_HELD} micro-batches"
)
CLEARED_IN_PART = (
    "the script cleared gradients that FSDP had not reduced, and left those in .grad: gradients of "
    "some micro-batches were discarded"
)

HELD_IN_PART = (
    "FSDP has reduced the gradients of some parameters and not of others (set_requires_gradient_"
    "sync or set_requires_all_reduce of a part of the model), which it adds to those of the next "
    "window that reduces them: whether this is intended is not known"
)


class Reduction(NamedTuple):
    """How the gradients of one parameter group were reduced."""

    ranks: int  # over how many
    divisor: float  # of their sum; 0 if it is not known
    unknown: str = ""  # why


def reduces(group: Any) -> bool:
    """Whether the group's gradients of this backward reach ``.grad``."""
    copies = getattr(group.mesh_info, "replicate_mesh_size", None)
    return bool(group.reduce_grads and (copies is None or group.all_reduce_grads))


def trains(group: Any, micro_batch: OpenMicroBatch) -> bool:
    """Whether a gradient reaches the group: of frozen parameters, FSDP2 reduces none.

    Notes which shards its gathered parameters stand for: the graph has these as leaves.
    """
    reach = micro_batch.reach
    for each in () if reach is None else group.fsdp_params:
        gathered = getattr(each, "_unsharded_param", None)
        if reach is not None and gathered is not None:
            reach.shards[id(gathered)] = id(each.sharded_param)
    return any(each.sharded_param.requires_grad for each in group.fsdp_params)


def reduction(group: Any) -> Reduction:
    """How this group reduces gradients."""
    shards = getattr(group.mesh_info, "shard_mesh_size", 1)
    ranks = shards * getattr(group.mesh_info, "replicate_mesh_size", 1)
    if getattr(group, "_all_reduce_hook", None) is not None:
        return Reduction(ranks, 0, CUSTOM.format("set_all_reduce_hook"))
    communication = getattr(group, "_reduce_scatter_comm", None)
    if not type(communication).__module__.startswith(("torch.", "builtins")):
        return Reduction(ranks, 0, CUSTOM.format("set_custom_reduce_scatter"))
    if getattr(group, "reduce_scatter_reduce_op", None) is not None:
        return Reduction(ranks, 0, OLD_FACTOR)
    factor = getattr(group, "gradient_divide_factor", None)
    if factor is None:
        return Reduction(ranks, ranks)
    if shards == 1 and factor != 1:
        return Reduction(ranks, 0, ONE_SHARD)
    return Reduction(ranks, float(factor))


def sharded_parameters(module: Any) -> Iterator[Any]:
    """The parameters of a module that FSDP2 shards, also while it has gathered them.

    An optimizer holds the shards; ``module.parameters()`` may return what was gathered.
    """
    for part in module.modules():
        state = part._get_fsdp_state() if hasattr(part, "_get_fsdp_state") else None
        groups = getattr(state, "_fsdp_param_groups", None)  # before 2.13, there is one
        for group in groups or [getattr(state, "_fsdp_param_group", None)]:
            yield from (each.sharded_param for each in getattr(group, "fsdp_params", ()))


def data_ranks(parameters: list[Any], by_fsdp2: bool) -> tuple[int, ...]:
    """The ranks over which gradients are combined, by the placements of a sharded parameter.

    FSDP2 shards over the first dimension of a mesh, or the second if it replicates over the first
    (``fully_shard``); the dimensions after it are those of tensor parallelism, whose ranks see the
    same data. Without FSDP2, all are. Empty if no parameter shows it.
    """
    for parameter in filter(is_dtensor, parameters):
        dimensions, coordinate = _data_dimensions(parameter, by_fsdp2)
        if not coordinate:
            continue
        ranks = parameter.device_mesh.mesh
        for position in reversed(coordinate[dimensions:]):
            ranks = ranks[..., position]
        return tuple(ranks.flatten().tolist())
    return ()


def tensor_ranks(parameters: list[Any], by_fsdp2: bool) -> tuple[int, ...]:
    """The ranks that hold the other parts of a parameter, by tensor parallelism; empty if none.

    FSDP2 places parameters of modules that are not in the plan over the dimensions of data alone.
    """
    largest: tuple[int, ...] = ()
    for parameter in filter(is_dtensor, parameters):
        dimensions, coordinate = _data_dimensions(parameter, by_fsdp2)
        if coordinate:
            ranks = parameter.device_mesh.mesh[tuple(coordinate[:dimensions])]
            largest = max(largest, tuple(ranks.flatten().tolist()), key=len)
    return largest


def is_copied(parameter: Any, tensor_group: Sequence[int]) -> bool:
    """Whether each rank of tensor parallelism holds the same of it: it is not placed over them."""
    if not is_dtensor(parameter):
        return True
    return len(set(parameter.device_mesh.mesh.flatten().tolist()) & set(tensor_group)) == 1


def _data_dimensions(parameter: Any, by_fsdp2: bool) -> tuple[int, list[int]]:
    """How many dimensions of its mesh are of data parallelism, and this rank's place in it.

    No place if the parameter does not show it: each rank holds all of it.
    """
    # a strided shard of FSDP2 does not call itself one
    sharded = [not placement.is_replicate() for placement in parameter.placements]
    coordinate = parameter.device_mesh.get_coordinate()
    if coordinate is None or not any(sharded):
        return 0, []
    return (sharded.index(True) + 1 if by_fsdp2 else 0), list(coordinate)


def describe(step: OpenStep) -> None:
    """Record by what the sum of the ranks' gradients was divided, if it is not their average.

    Expert parameters may be sharded over fewer ranks than the others, and be divided by the same
    number: that of the ranks whose tokens reach them. The parameters over most ranks count.
    """
    reductions = [r for c in step.micro_batches for r in c.micro_batch.reductions]
    most = max((reduction.ranks for reduction in reductions), default=0)
    reductions = [reduction for reduction in reductions if reduction.ranks == most]
    unknown = next((reduction.unknown for reduction in reductions if reduction.unknown), None)
    if unknown is not None:
        step.missing["sync"] = step.missing["divisors"] = unknown
        return
    divisors = {reduction.divisor for reduction in reductions}
    if divisors - {most}:
        step.fields["divisors"] = sorted(divisors)


class HeldGradients:
    """Gradients that FSDP2 has not reduced when the optimizer steps: it adds them to later ones.

    The window in which they are reduced has their micro-batches, too.
    """

    def __init__(self) -> None:
        self._groups: WeakSet[Any] = WeakSet()  # that did not reduce in their latest backward
        self._micro_batches: WeakKeyDictionary[OptimizerWindow, list[CountedMicroBatch]] = (
            WeakKeyDictionary()
        )
        self._cleared_in_part: WeakSet[OptimizerWindow] = WeakSet()

    def note(self, group: Any) -> None:
        """The latest backward of a parameter group."""
        if reduces(group):
            self._groups.discard(group)
        else:
            self._groups.add(group)

    def check(self, windows: Iterable[OptimizerWindow]) -> None:
        """Forget the micro-batches whose gradients the script has discarded, past FSDP2.

        Those of the open window are followed by a micro-batch that begins afresh.
        """
        for window in windows if self._groups or self._micro_batches else ():
            own = window.micro_batches if window.hidden_gradients else []
            alone = own or not window.micro_batches
            earlier = self._micro_batches.get(window, ()) if alone else ()
            hidden = {i for c in (*earlier, *own) for i in c.micro_batch.hidden_parameters}
            groups = [group for group in self._groups if _has_any(group, hidden)]
            if any(map(_holds_gradients, groups)):
                continue
            self._micro_batches.pop(window, None)
            if not own or not groups:  # FSDP1 and pipelines hide gradients, too
                continue
            if any(map(any, window.marks)):  # there are others in ``.grad``
                self._cleared_in_part.add(window)
            else:
                window.fresh = True

    def add_to(self, step: OpenStep, window: OptimizerWindow) -> None:
        """Add the micro-batches of earlier windows to the window that reduces their gradients."""
        if window in self._cleared_in_part:
            self._cleared_in_part.discard(window)
            step.missing["sync"] = CLEARED_IN_PART
        own = step.micro_batches
        if own and own[-1].micro_batch.wrapper == "sync" and self._holds_some_of(window):
            step.missing["sync"] = HELD_IN_PART
        held = self._micro_batches.pop(window, [])
        decisions = {counted.micro_batch.wrapper for counted in own}
        # a window that begins without ``.grad`` adds to what FSDP2 holds
        first = [replace(each, fresh=False, sample_before=None) for each in own[:1] if held]
        if decisions == {"no_sync"} or (held and not own):
            self._micro_batches[window] = [*held, *first, *own[len(first) :]][: MAX_HELD + 1]
        elif held and len(held) <= MAX_HELD:
            step.micro_batches = [*held, *first, *own[1:]]
            for event in step.events:
                event.after += len(held)
        elif held:
            step.missing["sync"] = MANY_HELD

    def _holds_some_of(self, window: OptimizerWindow) -> bool:
        """Whether groups of this optimizer's parameters have gradients that were not reduced."""
        held = [group for group in self._groups if _holds_gradients(group)]
        own = {id(parameter) for parameter in window.parameters()} if held else set()
        return any(_has_any(group, own) for group in held)

    def clear(self) -> None:
        """Forget all: steps were skipped."""
        self._micro_batches.clear()
        self._cleared_in_part.clear()


def _has_any(group: Any, parameters: set[int]) -> bool:
    """Whether a group has some of these parameters (by id)."""
    return any(id(each.sharded_param) in parameters for each in group.fsdp_params)


def _holds_gradients(group: Any) -> bool:
    """Whether a group has gradients outside ``.grad``."""
    if getattr(group, "_partial_reduce_output", None) is not None:  # of hybrid sharding
        return True
    return any(
        getattr(each, "unsharded_accumulated_grad", None) is not None
        or getattr(getattr(each, "_unsharded_param", None), "grad", None) is not None
        for each in group.fsdp_params
    )
