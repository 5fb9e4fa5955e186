"""Samples gradients of a whole model of which an optimizer holds a share.

In ZeRO by hand, the optimizer of each rank steps a share of the model: some of its parameters, or a
flat copy of a part of them, to which the loop assigns the gradient. No rank's own sample shows
then how the ranks' gradients were combined. So each rank sends the gradients of the same
coordinates of the model after its last backward, and, of those that its optimizer holds, when it
steps. The service compares them if the parameters at these coordinates are equal on all ranks.

A flat copy is recognised by its values: it has those of the model's parameters, in sequence, when
a backward begins.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from gradledger.capture.async_copy import Deferred
from gradledger.capture.by_hand.updates import UpdateByHand, leaves_of
from gradledger.capture.isolation import is_plain
from gradledger.capture.open_parts import OpenShares
from gradledger.capture.open_records import CountedMicroBatch, OpenMicroBatch, OpenStep
from gradledger.capture.open_terms import HALF
from gradledger.observers.base import Observer
from gradledger.observers.ranks.process_groups import world_size

if TYPE_CHECKING:
    from gradledger.capture.windows import OpenWindows, OptimizerWindow

MOST_SEARCHES = 4  # of graphs for parameters that no optimizer holds; for the copies of a window
MOST_SAMPLED = 32  # parameters
COORDINATES = 64  # of all parameters together, if there are not more of them
RUN = 8  # numbers in sequence by which a part of a copy is recognised
MOST_CANDIDATES = 8  # where such a sequence may begin
MOST_COMPARED = 20_000_000  # elements, in the search for the copies of one optimizer

_Coordinate = tuple[int, Any, int]  # the number of a coordinate, its parameter, and which element


class _Coordinates:
    """Some elements of some parameters. It keeps none of them alive."""

    def __init__(self, total: int, chosen: Sequence[_Coordinate]) -> None:
        """``total`` is the number of all coordinates, of which these are some."""
        parameters = list({id(parameter): parameter for _, parameter, _ in chosen}.values())
        self.total = total
        self._parameters = UpdateByHand(parameters)
        self._where, self._elements = [], []
        for each in parameters:
            own = [(number, at) for number, parameter, at in chosen if parameter is each]
            self._where.append(torch.tensor([number for number, _ in own], device=each.device))
            self._elements.append(torch.tensor([at for _, at in own], device=each.device))

    @property
    def is_complete(self) -> bool:
        """Whether the script has dropped none of the parameters."""
        return self._parameters.is_complete

    def values(self) -> Deferred | None:
        """Of the parameters; not a number at the coordinates that none of them has."""
        return self._read(self._parameters.parameters)

    def gradients(self) -> Deferred | None:
        """Of their gradients, also not a number where there is none; None if all have none."""
        gradients = [parameter.grad for parameter in self._parameters.parameters]
        return None if all(each is None for each in gradients) else self._read(gradients)

    def _read(self, tensors: list[Any]) -> Deferred | None:
        if len(tensors) < len(self._where):
            return None
        present = [tensor for tensor in tensors if tensor is not None]
        device = present[0].device if present else None
        result = torch.full((self.total,), math.nan, dtype=torch.float32, device=device)
        for tensor, where, elements in zip(tensors, self._where, self._elements, strict=True):
            if tensor is not None and _is_dense(tensor) and tensor.device == device:
                result[where] = tensor.detach().reshape(-1)[elements].to(torch.float32)
        return Deferred(result)


@dataclass(eq=False)
class _Share:
    """The coordinates that an optimizer holds."""

    coordinates: _Coordinates
    copies: _Coordinates | None = None  # these alone, if they are copies
    copied: _Coordinates | None = None  # and those of the model
    before: Deferred | None = None  # gradients of these when the backward began
    after: Deferred | None = None  # and when it had ended


class Shares(Observer):
    """Fills ``shares`` and ``shared_model`` of steps."""

    facts = ("shares",)

    def __init__(self, windows: OpenWindows) -> None:
        super().__init__()
        self._windows = windows
        self._searches = 0
        self._model: list[_Coordinate] = []  # coordinates, with weak references
        self._coordinates: _Coordinates | None = None  # of the model
        self._after: Deferred | None = None  # its gradients after the last backward
        self._half = False
        self._shares: weakref.WeakKeyDictionary[OptimizerWindow, _Share | None]
        self._shares = weakref.WeakKeyDictionary()
        self._compared: weakref.WeakKeyDictionary[OptimizerWindow, int]  # how often, with copies
        self._compared = weakref.WeakKeyDictionary()
        self._applied: Deferred | None = None  # gradients of copies, when the step began

    def resume(self, windows: list[OptimizerWindow]) -> None:
        """Forget the last backward before the pause."""
        super().resume(windows)
        self._after = None

    def backward_begins(self, micro_batch: OpenMicroBatch, roots: tuple[Any, ...]) -> None:
        """Search for a model that optimizers share out, and for their copies of its parameters."""
        unfed = [w for w in micro_batch.marked_windows if w.starved or not (w.fed or w.steps)]
        if self._coordinates is not None and not self._coordinates.is_complete:
            self._coordinates = None
        distributed = world_size() > 1 or any(window.starved for window in unfed)
        if self._coordinates is None and self._searches < MOST_SEARCHES and distributed:
            self._search(roots)
        if self._coordinates is None:
            return
        for window in unfed:
            share, times = self._shares.get(window), self._compared.get(window, 0)
            if share is None and times < MOST_SEARCHES:
                self._compared[window] = times + 1
                share = self._copies(window)
            if share is not None and share.copied is not None:
                self._shares[window] = share
                share.before = share.copied.gradients()

    def backward_ends(self, micro_batch: OpenMicroBatch, reached: list[OptimizerWindow]) -> None:
        """Sample the gradients, and count the micro-batch where the loop copies them."""
        if self._coordinates is None:
            return
        self._after = self._coordinates.gradients()
        for window in self._windows.of_this_thread():
            share = self._shares.get(window)
            if window in reached or share is None or share.copied is None:
                continue
            share.after = after = share.copied.gradients()
            if after is not None:
                fresh = True if share.before is None else None
                counted = CountedMicroBatch(micro_batch, fresh, share.before, sample_after=after)
                counted.half = self._half
                window.sources.append(counted)

    def step_begins(self, step: OpenStep, window: OptimizerWindow) -> None:
        """Sample what the optimizer applies to its share."""
        self._applied = None
        if self._coordinates is None or self._after is None or not step.micro_batches:
            return
        if window not in self._shares:
            self._shares[window] = self._held(window)
        share = self._shares[window]
        if share is None or step.update is not None:
            return
        applied, values = share.coordinates.gradients(), self._coordinates.values()
        # else copies of whole parameters were sampled, at other coordinates
        sampled = step.micro_batches[-1].sample_after
        if share.copies is not None and sampled is not None and sampled is share.after:
            self._applied = share.copies.gradients()
        alone = world_size() == 1 or "wrapper" in step.fields
        if applied is not None and values is not None and not alone:
            step.shares = OpenShares(self._after, applied, values)

    def step_ends(self, step: OpenStep, window: OptimizerWindow) -> None:
        """Other observers have compared their own samples of the optimizer's gradients."""
        if step.ran_in_step:  # collectives that may have combined them, after they were sampled
            step.shares = None
        elif self._applied is not None:
            step.sample_at_step, step.sample_before_step = self._applied, None

    # ------------------------------------------------------------------ the search

    def _search(self, roots: Sequence[Any]) -> None:
        """The parameters below these roots, if no optimizer holds some of them."""
        self._searches += 1
        leaves = [leaf for leaf in leaves_of(roots) if _is_parameter(leaf)]
        held = self._held_by_all()
        if all(id(leaf) in held for leaf in leaves):
            return
        device = leaves[0].device
        sampled = [leaf for leaf in leaves if leaf.device == device and leaf.numel()]
        step = max(1, math.ceil(len(sampled) / MOST_SAMPLED))
        sampled = sampled[::step]
        chosen = [(leaf, at) for leaf in sampled for at in _spread(leaf.numel(), len(sampled))]
        numbered = [(number, leaf, at) for number, (leaf, at) in enumerate(chosen)]
        self._coordinates = _Coordinates(len(numbered), numbered)
        self._model = [(number, weakref.ref(leaf), at) for number, leaf, at in numbered]
        self._half = any(leaf.dtype in HALF for leaf in sampled)
        self._shares.clear()

    def _held_by_all(self) -> set[int]:
        return {id(p) for window in self._windows for p in window.parameters()}

    def _chosen(self) -> Iterator[_Coordinate]:
        for number, reference, at in self._model:
            leaf = reference()
            if leaf is not None:
                yield number, leaf, at

    def _held(self, window: OptimizerWindow) -> _Share | None:
        """The parameters of the model that an optimizer holds itself."""
        held = set(map(id, window.parameters()))
        chosen = [c for c in self._chosen() if id(c[1]) in held]
        return _Share(_Coordinates(len(self._model), chosen)) if chosen else None

    def _copies(self, window: OptimizerWindow) -> _Share | None:
        """The coordinates of the model of which an optimizer holds copies."""
        held_by_all = self._held_by_all()
        chosen = [c for c in self._chosen() if id(c[1]) not in held_by_all]
        leaves = list({id(leaf): leaf for _, leaf, _ in chosen}.values())
        masters = [p for p in window.parameters() if _is_dense(p) and p.is_cpu and p.numel()]
        work = sum(master.numel() for master in masters) * len(leaves)
        if not masters or work > MOST_COMPARED or not all(leaf.is_cpu for leaf in leaves):
            return None
        starts = {id(leaf): _find(masters, leaf) for leaf in leaves}
        held: list[_Coordinate] = []
        copies: list[_Coordinate] = []  # numbered by themselves, as the next
        copied: list[_Coordinate] = []
        for number, leaf, at in chosen:
            for master, start in starts[id(leaf)]:
                if 0 <= start + at < master.numel():
                    held.append((number, master, start + at))
                    copies.append((len(copies), master, start + at))
                    copied.append((len(copied), leaf, at))
                    break
        if not held:
            return None
        total, own = len(self._model), len(held)
        return _Share(
            _Coordinates(total, held), _Coordinates(own, copies), _Coordinates(own, copied)
        )


def _find(masters: Sequence[Any], leaf: Any) -> list[tuple[Any, int]]:
    """The parameters that have the values of a leaf, or some of them, and where it begins there.

    That is negative if the first of its values are not in it.
    """
    values = leaf.detach().reshape(-1)
    result = []
    for master in masters:
        start = _start_of(values, master.detach().reshape(-1).to(values.dtype))
        if start is not None:
            result.append((master, start))
    return result


def _start_of(values: torch.Tensor, copies: torch.Tensor) -> int | None:
    size, length = len(values), len(copies)
    if size < RUN:
        return None
    for begin in dict.fromkeys((0, (size - RUN) // 3, (size - RUN) * 2 // 3, size - RUN)):
        run = values[begin : begin + RUN]
        if len(run.unique()) < RUN // 2:
            continue  # such as zeros
        for at in (copies == run[0]).nonzero().flatten()[:MOST_CANDIDATES].tolist():
            start = int(at) - begin
            low, high = max(0, start), min(length, start + size)
            same = torch.equal(copies[low:high], values[low - start : high - start])
            if high - low >= RUN and same:
                return start
    return None


def _spread(size: int, parameters: int) -> list[int]:
    """Evenly spread elements of one of several parameters."""
    count = min(size, max(1, COORDINATES // parameters))
    return [(2 * number + 1) * size // (2 * count) for number in range(count)]


def _is_parameter(leaf: Any) -> bool:
    return isinstance(leaf, torch.nn.Parameter) and _is_dense(leaf)


def _is_dense(tensor: Any) -> bool:
    """Also, whether it has memory: FSDP frees that of whole parameters after their use."""
    strided = is_plain(tensor) and tensor.layout is torch.strided and not tensor.is_nested
    return strided and tensor.untyped_storage().nbytes() > 0
