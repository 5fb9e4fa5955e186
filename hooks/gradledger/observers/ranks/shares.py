"""Samples gradients of a whole model of which an optimizer holds a share.

In ZeRO by hand, the optimizer of each rank steps a share of the model: some of its parameters, or a
flat copy of a part of them, to which the loop assigns the gradient. No rank's own sample shows
then how the ranks' gradients were combined. So each rank sends the gradients of the same
coordinates of the model after its last backward, and, of those that its optimizer holds, when it
steps. Where hooks may combine them inside backward, what arrives before these is added up instead.
The service compares them if the parameters at these coordinates are equal on all ranks.
If a parameter cannot be read as it was when they were chosen, nothing is sent.

A flat copy is recognised by its values: it has those of the model's parameters, in sequence, when
a backward begins. The model is read only on the thread that trains it, while no other one runs a
backward: see ``windows``.
"""

from __future__ import annotations

import functools
import math
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from gradledger.capture.async_copy import Deferred
from gradledger.capture.by_hand.updates import leaves_of
from gradledger.capture.isolation import alive, is_plain, isolated, never_compile
from gradledger.capture.open_parts import OpenShares
from gradledger.capture.open_records import CountedMicroBatch, OpenMicroBatch, OpenStep
from gradledger.capture.open_terms import HALF
from gradledger.observers.base import Observer
from gradledger.observers.ranks.flat_copies import find_copies
from gradledger.observers.ranks.local_gradients import call_first
from gradledger.observers.ranks.process_groups import world_size

if TYPE_CHECKING:
    from gradledger.capture.windows import OpenWindows, OptimizerWindow

MOST_SEARCHES = 4  # of graphs for parameters that no optimizer holds; for the copies of a window
MOST_SAMPLED = 32  # parameters
COORDINATES = 64  # of all parameters together, if there are not more of them
MOST_COMPARED = 20_000_000  # elements, in the search for the copies of one optimizer


class _Piece(NamedTuple):
    """Evenly spread elements of one parameter."""

    number: int  # of the first of these coordinates; the others follow
    parameter: weakref.ref[Any]
    size: int  # elements of the parameter
    first: int  # element
    stride: int
    length: int

    def view(self, tensor: Any) -> torch.Tensor | None:
        """Of the parameter or its gradient; None if that has no such elements any more."""
        if not _is_dense(tensor) or tensor.numel() != self.size:
            return None
        begin = tensor.storage_offset() + self.first
        view: torch.Tensor = tensor.data.as_strided((self.length,), (self.stride,), begin)
        return view.to(torch.float32)

    def part(self, low: int, high: int) -> _Piece:
        """Some of these coordinates."""
        first = self.first + low * self.stride
        return self._replace(number=self.number + low, first=first, length=high - low)


class _Coordinates:
    """Some elements of some parameters. It keeps none of them alive."""

    def __init__(self, total: int, pieces: Sequence[_Piece]) -> None:
        """``total`` is the number of all coordinates, of which these are some."""
        self.total = total
        self.pieces = pieces

    def parameters(self) -> list[Any]:
        """One for each piece; none if the script has dropped some of them."""
        parameters = alive(piece.parameter for piece in self.pieces)
        return parameters if len(parameters) == len(self.pieces) else []

    def values(self) -> Deferred | None:
        """Of the parameters; not a number at the coordinates that none of them has."""
        return self._read(self.parameters(), math.nan)

    def gradients(self, absent: float = math.nan) -> Deferred | None:
        """Of their gradients; None if all have none. ``absent``: the value where there is none."""
        return self._read([parameter.grad for parameter in self.parameters()], absent)

    def _read(self, tensors: list[Any], absent: float) -> Deferred | None:
        device = next((tensor.device for tensor in tensors if tensor is not None), None)
        if device is None:
            return None
        parts, number = [], 0
        for piece, tensor in zip(self.pieces, tensors, strict=True):
            view = _constant(piece.length, absent, device) if tensor is None else piece.view(tensor)
            if view is None or view.device != device:
                return None
            if piece.number > number:
                parts.append(_constant(piece.number - number, math.nan, device))
            parts.append(view)
            number = piece.number + piece.length
        return Deferred(torch.cat([*parts, _constant(self.total - number, math.nan, device)]))


@dataclass(eq=False)
class _Share:
    """The coordinates that an optimizer holds."""

    coordinates: _Coordinates
    copies: _Coordinates | None = None  # these alone, if they are copies
    copied: _Coordinates | None = None  # and those of the model
    after: Deferred | None = None  # gradients of these after the last backward


class _Arriving:
    """What this rank's backwards add to the gradients of a window, before hooks combine it."""

    def __init__(self) -> None:
        self.stepped = False  # the next backward begins a window
        self._from_begin = False  # this window's backwards were all watched
        self._handles: list[Any] = []
        self._sums: dict[int, torch.Tensor] = {}  # by the number of the piece
        # The latest backward; ``autograd.grad`` calls the hooks, too, and accumulates nothing.
        self._backward: OpenMicroBatch | None = None

    def watch(self, model: _Coordinates, around: Any) -> None:
        """From the next backward on; a hook must not keep its parameter alive."""
        if self._handles:
            return
        for piece, parameter in zip(model.pieces, model.parameters(), strict=False):
            if not parameter.requires_grad:
                continue
            hook = around(functools.partial(self._add, piece))
            self._handles.append(parameter.register_hook(never_compile(hook)))
            call_first(parameter, self._handles[-1])

    def begin(self, micro_batch: OpenMicroBatch) -> None:
        """A backward begins."""
        self._backward = micro_batch
        if self.stepped:
            self.stepped, self._from_begin = False, bool(self._handles)
            self._sums.clear()

    def total(self, model: _Coordinates) -> Deferred | None:
        """Of the window so far, at all coordinates; None if a backward was not watched."""
        if not self._from_begin or not self._sums:
            return None
        device = next(iter(self._sums.values())).device
        zeros = (_constant(piece.length, 0.0, device) for piece in model.pieces)
        pairs = zip(model.pieces, zeros, strict=True)
        values = [self._sums.get(piece.number, absent) for piece, absent in pairs]
        alike = all(value.device == device for value in values)
        return Deferred(torch.cat(values)) if alike else None

    def release(self) -> None:
        """Remove all hooks."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._sums.clear()
        self._from_begin, self._backward = False, None

    def _add(self, piece: _Piece, arriving: Any) -> None:
        if self._backward is None or self._backward.complete:
            return
        with isolated():
            view = piece.view(arriving)
            if view is not None:
                earlier = self._sums.get(piece.number)
                self._sums[piece.number] = view.clone() if earlier is None else earlier + view


class Shares(Observer):
    """Fills ``shares`` and ``shared_model`` of steps."""

    facts = ("shares",)

    def __init__(self, windows: OpenWindows) -> None:
        super().__init__()
        self._windows = windows
        self._searches = 0
        self._coordinates: _Coordinates | None = None  # of the model
        self._thread = 0  # that trains it
        self._half = False
        self._after: Deferred | None = None  # its gradients after the last backward
        self._is_own = False  # these are what this rank's backwards have added
        self._arriving = _Arriving()
        self._shares: weakref.WeakKeyDictionary[OptimizerWindow, _Share | None]
        self._shares = weakref.WeakKeyDictionary()
        self._compared: weakref.WeakKeyDictionary[OptimizerWindow, int]  # how often, with copies
        self._compared = weakref.WeakKeyDictionary()
        # windows with copies of what this backward may reach, and the gradients when it began
        self._copied: list[tuple[OptimizerWindow, _Share, Deferred | None]] = []
        # the step that runs, and the gradients of copies when it began
        self._applied: tuple[OpenStep, Deferred | None] | None = None

    def resume(self, windows: list[OptimizerWindow]) -> None:
        """Forget the last backward before the pause."""
        super().resume(windows)
        self._forget()

    def pause(self) -> None:
        """Remove the hooks of parameters, too."""
        super().pause()
        self._arriving.release()

    def uninstall(self) -> None:
        """The same."""
        super().uninstall()
        self._arriving.release()

    def _forget(self) -> None:
        self._after, self._applied, self._copied = None, None, []

    def _stop(self) -> None:
        """For good: nothing can be concluded."""
        self._forget()
        self._coordinates, self._searches = None, MOST_SEARCHES
        self._arriving.release()
        self._shares.clear()

    def backward_begins(self, micro_batch: OpenMicroBatch, roots: tuple[Any, ...]) -> None:
        """Search for a model that optimizers share out, and for their copies of its parameters."""
        self._forget()
        if not micro_batch.alone:
            return
        if self._coordinates is not None and not self._coordinates.parameters():
            self._coordinates = None
            self._arriving.release()
        self._arriving.begin(micro_batch)
        unfed = [w for w in micro_batch.marked_windows if w.starved or not (w.fed or w.steps)]
        if self._coordinates is None and self._searches < MOST_SEARCHES and _may_share_out(unfed):
            self._search(roots, micro_batch.thread)
        if self._coordinates is None or micro_batch.thread != self._thread:
            return
        for window in unfed:
            share, times = self._shares.get(window), self._compared.get(window, 0)
            if share is None and times < MOST_SEARCHES:
                self._compared[window] = times + 1
                share = self._copies(window, self._coordinates)
            if share is not None and share.copied is not None:
                self._shares[window] = share
                self._copied.append((window, share, share.copied.gradients(absent=0.0)))

    def backward_ends(self, micro_batch: OpenMicroBatch, reached: list[OptimizerWindow]) -> None:
        """Sample the gradients, and count the micro-batch where the loop copies them."""
        if self._coordinates is None or micro_batch.thread != self._thread or not micro_batch.alone:
            return
        if world_size() == 1 and not self._has_copies():
            return  # there is no rank to compare with
        own = self._arriving.total(self._coordinates)
        self._after = self._coordinates.gradients() if own is None else own
        self._is_own = own is not None
        if micro_batch.collectives and micro_batch.wrapper is None:
            self._arriving.watch(self._coordinates, self._guard)
        for window, share, before in self._copied:
            if window in reached or share.copied is None:
                continue
            share.after = after = share.copied.gradients(absent=0.0)
            if after is not None:
                fresh = True if before is None else None
                counted = CountedMicroBatch(micro_batch, fresh, before, sample_after=after)
                counted.half = self._half
                window.add_source(counted)

    def _has_copies(self) -> bool:
        """Whether an optimizer holds flat copies of the model's parameters."""
        return bool(self._copied) or any(
            share is not None and share.copies is not None for share in self._shares.values()
        )

    def step_begins(self, step: OpenStep, window: OptimizerWindow) -> None:
        """Sample what the optimizer applies to its share."""
        self._applied, model = None, self._coordinates
        self._arriving.stepped = True
        if model is None or window.thread != self._thread:
            return
        if window not in self._shares:
            self._shares[window] = _held(window, model)
        share = self._shares[window]
        if "wrapper" in step.fields or self._none_holds():
            self._stop()
        if (
            share is None
            or self._after is None
            or not step.micro_batches
            or step.update is not None
        ):
            return
        # else copies of whole parameters were sampled, at other coordinates
        sampled = step.micro_batches[-1].sample_after
        if share.copies is not None and sampled is not None and sampled is share.after:
            self._applied = step, share.copies.gradients()
        if world_size() > 1:
            applied, values = share.coordinates.gradients(), model.values()
            if applied is not None and values is not None:
                step.shares = OpenShares(self._after, applied, values, self._is_own)

    def step_ends(self, step: OpenStep, window: OptimizerWindow) -> None:
        """Other observers have compared their own samples of the optimizer's gradients."""
        (of, applied), self._applied = self._applied or (None, None), None
        if step.ran_in_step:  # collectives that may have combined them, after they were sampled
            step.shares = None
        elif of is step and applied is not None:
            step.sample_at_step, step.sample_before_step = applied, None

    # ------------------------------------------------------------------ the search

    def _search(self, roots: Sequence[Any], thread: int) -> None:
        """The parameters below these roots, if no optimizer holds some of them."""
        self._searches += 1
        leaves = [leaf for leaf in leaves_of(roots) if _is_parameter(leaf)]
        held = self._held_by_all()
        if all(id(leaf) in held for leaf in leaves):
            return
        sampled = [leaf for leaf in leaves if leaf.device == leaves[0].device]
        sampled = sampled[:: math.ceil(len(sampled) / MOST_SAMPLED)]
        pieces: list[_Piece] = []
        total = 0
        for leaf in sampled:
            size = leaf.numel()
            count = min(size, max(1, COORDINATES // len(sampled)))
            stride = size // count
            pieces.append(_Piece(total, weakref.ref(leaf), size, stride // 2, stride, count))
            total += count
        self._coordinates, self._thread = _Coordinates(total, pieces), thread
        self._half = any(leaf.dtype in HALF for leaf in sampled)
        self._shares.clear()

    def _held_by_all(self) -> set[int]:
        return {id(p) for window in self._windows for p in window.parameters()}

    def _none_holds(self) -> bool:
        """Whether no optimizer holds a share, although each has taken some steps."""
        none = all(share is None for share in self._shares.values())
        return none and all(window.steps > MOST_SEARCHES for window in self._windows)

    def _copies(self, window: OptimizerWindow, model: _Coordinates) -> _Share | None:
        """The coordinates of the model of which an optimizer holds copies."""
        held_by_all = self._held_by_all()
        pairs = zip(model.pieces, model.parameters(), strict=False)  # none if one was dropped
        leaves = [(piece, leaf) for piece, leaf in pairs if id(leaf) not in held_by_all]
        leaves = [(piece, leaf) for piece, leaf in leaves if piece.view(leaf) is not None]
        masters = [p for p in window.parameters() if _is_dense(p) and p.is_cpu]
        work = sum(master.numel() for master in masters) * len(leaves)
        if not masters or work > MOST_COMPARED or not all(leaf.is_cpu for _, leaf in leaves):
            return None
        held: list[_Piece] = []
        copies: list[_Piece] = []  # numbered by themselves, as the next
        copied: list[_Piece] = []
        total = 0
        for piece, leaf in leaves:
            for part, copy in _parts(piece, find_copies(masters, leaf)):
                held.append(copy)
                copies.append(copy._replace(number=total))
                copied.append(part._replace(number=total))
                total += part.length
        if not held:
            return None
        own = _Coordinates(total, copies), _Coordinates(total, copied)
        return _Share(_Coordinates(model.total, held), *own)


def _may_share_out(unfed: Sequence[OptimizerWindow]) -> bool:
    return world_size() > 1 or any(window.starved for window in unfed)


def _held(window: OptimizerWindow, model: _Coordinates) -> _Share | None:
    """The parameters of the model that an optimizer holds itself."""
    held = set(map(id, window.parameters()))
    pieces = [piece for piece in model.pieces if id(piece.parameter()) in held]
    return _Share(_Coordinates(model.total, pieces)) if pieces else None


def _parts(piece: _Piece, holders: list[tuple[Any, int]]) -> Iterator[tuple[_Piece, _Piece]]:
    """Parts of a piece, in sequence, each with the same coordinates of the copy that holds it."""
    begin = 0
    for master, start in sorted(holders, key=lambda each: -each[1]):
        first, size = start + piece.first, master.numel()
        low = max(begin, -(first // piece.stride))
        high = min(piece.length, -((first - size) // piece.stride))
        if low < high:
            part, begin = piece.part(low, high), high
            at = first + low * piece.stride
            yield part, part._replace(parameter=weakref.ref(master), size=size, first=at)


def _constant(count: int, value: float, device: torch.device) -> torch.Tensor:
    return torch.full((count,), value, dtype=torch.float32, device=device)


def _is_parameter(leaf: Any) -> bool:
    return isinstance(leaf, torch.nn.Parameter) and _is_dense(leaf)


def _is_dense(tensor: Any) -> bool:
    """Whether it has real elements, in one sequence in memory; FSDP frees that of parameters."""
    strided = is_plain(tensor) and tensor.layout is torch.strided and not tensor.is_nested
    real = strided and tensor.is_floating_point() and tensor.is_contiguous()
    return bool(real and tensor.numel() and tensor.untyped_storage().nbytes() > 0)
