"""A few coordinates of a few gradients: enough to detect what happens to all of them.

A loop that zeroes, unscales, scales or clips gradients does so to all coordinates alike. Up to 16
evenly spread coordinates of each of four parameters therefore stand for the whole gradient:

- equal before and after: nothing was done to it;
- all multiplied by one number (``common_factor``): scaled, unscaled or clipped by that factor;
- all zero: zeroed;
- anything else: changed in another way, for example combined with other ranks.
  What a clip by value leaves is computed from the sample before it (``open_parts``).

``GradientProbe`` copies the coordinates on the training thread. The other functions compare copies
on the background thread.

Hooks may move each gradient to the attribute ``main_grad`` of its parameter inside backward, as
those of Megatron do. Then it accumulates there, and ``.grad`` is absent until the loop assigns it
for the step. ``GradientProbe`` reads it there once a backward was observed to do so: a loop that
moves gradients after backward accumulates nothing inside it.
"""

from __future__ import annotations

import math
import operator
import weakref
from collections.abc import Iterable, Sequence
from itertools import cycle, pairwise
from typing import Any, NamedTuple

import torch

from gradledger import guard
from gradledger.capture.async_copy import Deferred, as_real, flat_values
from gradledger.capture.isolation import (
    capturing,
    is_plain,
    isolated,
    local_part,
    version_of,
)
from gradledger.records import Samples

PROBED_PARAMETERS = 4
COORDINATES = 16  # of each probed parameter
ABSENT = (0, 0)  # the mark of a gradient that does not exist: see ``windows``
SENT_COORDINATES = 16  # of all parameters together, if the record carries the sample itself

_GOLDEN = 0.6180339887  # its multiples are spread evenly, modulo 1
_FEWEST = 4  # coordinates of a sum over rows: one number shows no change that is not one factor

# Relative deviation between coordinates up to which a change of the gradient is one factor.
UNIFORM = 1e-3
UNIFORM_HALF = 2e-2
ROUNDED = 0.02  # share of a change of the parameters that may be rounding
CHANGED = "the gradients were changed after backward, not scaled by one number"


class GradientProbe:
    """Copies coordinates of the gradients of a few parameters.

    It caches views of the gradients, so that a copy is one call while the gradients are the same
    tensors, in the same memory: ``grad.data = ...`` moves one. A view shares its gradient's memory:
    as soon as the script drops one of the gradients, the probe drops all views. Of sparse
    gradients, which get new entries in place, it has none.
    """

    def __init__(self) -> None:
        self._gradient_ids: list[int] = []
        self._addresses: list[int] = []  # of their values; see ``_address``
        self._references: list[weakref.ref[Any]] = []
        self._views: list[torch.Tensor] = []
        self.keeps_freed = False  # read the coordinates when the first gradient is freed
        self.freed: Deferred | None = None  # these
        self._in_main_grad = False  # hooks move the gradients there
        self._main_marks: list[tuple[int, int]] = []  # when a backward began without gradients

    def gradient_of(self, parameter: Any) -> Any:
        """What has accumulated so far; None if nothing has."""
        gradient = parameter.grad
        return _main_grad(parameter) if gradient is None and self._in_main_grad else gradient

    def marks(self, parameters: list[Any]) -> list[tuple[int, int]]:
        """The mark of each gradient now."""
        return _marks(map(self.gradient_of, parameters))

    def begin_without(self, parameters: list[Any]) -> None:
        """A backward begins, and these have no gradients."""
        self._main_marks = _marks(map(_main_grad, parameters))

    def find_moved(self, parameters: list[Any]) -> None:
        """A backward has ended: detect whether it moved all gradients to ``main_grad``."""
        begun, self._main_marks = self._main_marks, []
        if begun and all(p.grad is None for p in parameters):
            self._in_main_grad = _marks(map(_main_grad, parameters)) != begun

    def unassigned(self, parameters: list[Any]) -> bool:
        """Whether gradients were moved to ``main_grad``, and none of them is in ``.grad``."""
        return self._in_main_grad and all(p.grad is None for p in parameters)

    def copy(self, parameters: list[Any]) -> Deferred | None:
        """The current coordinates, in a fixed order; None if there are no gradients."""
        self.freed = None
        gradients = [g for g in map(self.gradient_of, parameters) if g is not None]
        ids = list(map(id, gradients))
        if ids != self._gradient_ids or self._moved(gradients):
            if any(gradient.layout is torch.sparse_coo for gradient in gradients):
                self.release()
                return copy_coordinates(list(map(_weighted_rows, gradients)))
            self._references = [weakref.ref(gradient, self._freed) for gradient in gradients]
            self._gradient_ids, self._views = ids, _views(gradients, COORDINATES)
            self._addresses = list(map(_address, gradients))
        return _copy_views(self._views)

    def release(self) -> None:
        """Drop the views."""
        self._gradient_ids, self._addresses, self._references, self._views = [], [], [], []

    def _moved(self, gradients: list[Any]) -> bool:
        return any(
            address and gradient.data_ptr() != address
            for gradient, address in zip(gradients, self._addresses, strict=True)
        )

    def _freed(self, reference: weakref.ref[Any]) -> None:
        """A gradient was freed. It may be one whose view was dropped before."""
        if any(reference is current for current in self._references):
            if self.keeps_freed:
                with guard.fail_open("the sample of a freed gradient"), isolated():
                    self.freed = None if capturing() else _copy_views(self._views)
            self.release()


def _main_grad(parameter: Any) -> Any:
    main: Any = vars(parameter).get("main_grad")
    is_gradient = isinstance(main, torch.Tensor) and main.numel() == parameter.numel()
    return main if is_gradient else None


def _marks(gradients: Iterable[Any]) -> list[tuple[int, int]]:
    return [ABSENT if g is None else (id(g), version_of(g)) for g in gradients]


def _address(gradient: Any) -> int:
    """Where its values are; 0 if it is a tensor that need not have an address."""
    ordinary = type(gradient) is torch.Tensor and gradient.layout is torch.strided
    return gradient.data_ptr() if ordinary and is_plain(gradient) else 0


def _weighted_rows(gradient: Any) -> Any:
    """A weighted sum over the rows of a sparse gradient; a dense one as it is.

    The order and the number of its entries differ between two micro-batches, so that no entry of
    one is a coordinate of the other. The sum is linear, as a coordinate is. Equal weights would
    add the rows under a softmax up to zero.
    """
    if gradient.layout is not torch.sparse_coo:
        return gradient
    plain = local_part(gradient).detach()
    values, rows = plain._values(), plain._indices()[0]
    columns = math.prod(values.shape[1:])
    if columns < _FEWEST:
        return gradient
    weights = (rows.float() * _GOLDEN) % 1.0 + 0.5
    return weights.to(values.dtype) @ values.reshape(len(rows), columns)


def spread(parameters: list[Any]) -> list[Any]:
    """A few parameters, evenly spread from the first layer to the last."""
    if len(parameters) <= PROBED_PARAMETERS:
        return parameters
    last = len(parameters) - 1
    return [parameters[i * last // (PROBED_PARAMETERS - 1)] for i in range(PROBED_PARAMETERS)]


def read_coordinates(tensor: Any, limit: int) -> Deferred | None:
    """Evenly spread values of a tensor that may be written over; None if it has none."""
    view = coordinates(tensor, limit)
    return None if view is None else Deferred(view, volatile=True)


def copy_coordinates(tensors: list[Any], limit: int = COORDINATES) -> Deferred | None:
    """Copies of evenly spread coordinates of each tensor; None if there are none."""
    return _copy_views(_views(tensors, limit))


def copy_each(tensors: list[Any], limit: int) -> tuple[Deferred | None, list[int]]:
    """Copies of evenly spread coordinates of each tensor, and how many each tensor has."""
    views = [coordinates(tensor, limit) for tensor in tensors]
    counts = [0 if view is None else view.numel() for view in views]
    return _copy_views([view for view in views if view is not None]), counts


def with_zeros(sample: Deferred, marks: list[tuple[int, int]], gradients: list[Any]) -> Deferred:
    """A sample of these gradients from before the script filled those that were absent."""
    if len(marks) != len(gradients) or any(gradient is None for gradient in gradients):
        return sample
    sizes = [min(COORDINATES, local_part(gradient).numel()) for gradient in gradients]
    present = sum(size for mark, size in zip(marks, sizes, strict=True) if mark != ABSENT)
    if sample.tensor is not None or not sample.ready or sample.has_no_copy:
        return sample  # on a device
    values = iter(sample.values())
    if len(sample.values()) != present:
        return sample
    pairs = zip(marks, sizes, strict=True)
    return Deferred.of(
        [0.0 if mark == ABSENT else next(values) for mark, size in pairs for _ in range(size)]
    )


def _copy_views(views: list[torch.Tensor]) -> Deferred | None:
    """On the CPU, reading the values is faster than copying the tensors."""
    if not views:
        return None
    if all(view.is_cpu for view in views):
        return Deferred.of([value for view in views for value in flat_values(view)])
    return Deferred(torch.cat([as_real(view).reshape(-1) for view in views]))


def _views(tensors: list[Any], limit: int) -> list[torch.Tensor]:
    return [view for view in (coordinates(t, limit) for t in tensors) if view is not None]


def coordinates(tensor: Any, limit: int = COORDINATES) -> torch.Tensor | None:
    """A view of evenly spread values of a tensor; None if it has none that can be read."""
    local = local_part(tensor)
    if local.layout is not torch.strided or not is_plain(local):
        return None
    size = local.numel()
    if size == 0:
        return None
    count = min(limit, size)
    stride = size // count
    flat: torch.Tensor = local.data  # a view of the tensor itself would keep the tensor alive
    if flat.is_contiguous() or _channels_last(flat):
        return flat.as_strided((count,), (stride,), flat.storage_offset())
    return flat.reshape(-1)[: count * stride : stride]


def _channels_last(tensor: torch.Tensor) -> bool:
    return tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last)


def common_factor(before: list[float], after: list[float], tolerance: float) -> float | str:
    """The one number that turns ``before`` into ``after``, or the reason why there is none."""
    if len(before) != len(after):
        return "the set of gradients changed between backward and the step"
    ratios = sorted(b / a for a, b in zip(before, after, strict=True) if a != 0)
    if not ratios:
        return "all sampled gradients are zero"
    if not all(map(math.isfinite, ratios)):
        return "the sampled gradients are not finite"
    middle = ratios[len(ratios) // 2]
    if not all(abs(r - middle) <= tolerance * abs(middle) for r in ratios):
        return CHANGED
    added = max((abs(b) for a, b in zip(before, after, strict=True) if a == 0), default=0.0)
    return CHANGED if added > tolerance * max(map(abs, after)) else middle


def is_reused(before: list[float], after: list[float], tolerance: float) -> bool:
    """Whether ``after`` is ``before``, or a positive multiple of it: clipped, scaled or unscaled.

    Gradients with one value in all coordinates are multiples of each other whatever made them.
    """
    if not any(after) or before == after:
        return any(after)
    factor = common_factor(before, after, tolerance)
    return (
        isinstance(factor, float)
        and factor > 0
        and len({abs(value) for value in before if value}) > 1
        and all((a == 0) == (b == 0) for a, b in zip(after, before, strict=True))
    )


def sent_samples(before: list[float], after: list[float], total: Sequence[float] = ()) -> Samples:
    """The same coordinates on all ranks, so that the service can compare them."""
    stride = max(1, len(before) // SENT_COORDINATES)
    return Samples(before[::stride], after[::stride], list(total[::stride]))


class AccumulatedSample(NamedTuple):
    """A sample of the accumulated gradients when a backward had ended."""

    values: list[float]
    fresh: bool  # there were no gradients, or zeros, when the backward began
    combined: bool  # the backward combined the gradients of all ranks


def added(samples: list[AccumulatedSample]) -> list[float | None]:
    """|g_k|^2 of each micro-batch over the sampled coordinates; empty if there is only one.

    The gradient of one micro-batch is the difference to the sample before it. If a backward ended
    with the gradients of all ranks, that of its micro-batch is not observable: None.
    """
    if len(samples) < 2 or len({len(sample.values) for sample in samples}) != 1:
        return []
    earlier, squares = [0.0] * len(samples[0].values), list[float | None]()
    for values, fresh, combined in samples:
        base = [0.0] * len(values) if fresh else earlier
        square = _square(list(map(operator.sub, values, base)))
        squares.append(None if combined else square)
        earlier = values
    return squares


def noise(samples: list[AccumulatedSample], squares: list[float | None]) -> list[float]:
    """|G_small|^2 and |G_big|^2 over the sampled coordinates, for the gradient noise scale.

    K times the gradient of one micro-batch estimates the same as the sum over the window
    (McCandlish et al. 2018, arXiv:1812.06162, appendix A.1). ``squares`` are those of ``added``.
    """
    observed = [square for square in squares if square is not None]
    if not observed:
        return []
    small = len(samples) ** 2 * sum(observed) / len(observed)
    return [small, _square(samples[-1].values)]


def _square(vector: list[float]) -> float:
    return math.fsum(map(operator.mul, vector, vector))


def fingerprint(values: list[float]) -> float:
    """A number that almost surely differs if any real value does, and changes little with each.

    NaN if a value is not finite.
    """
    if not all(map(math.isfinite, values)):
        return math.nan  # opposite infinities have no sum
    return math.fsum(map(operator.mul, values, cycle(range(1, 98))))


def fingerprint_of_labels(values: list[float]) -> float:
    """A whole number that almost surely differs if any label does; NaN if one is not finite.

    Sums of a few classes are often equal. Python computes the same hash of numbers in all
    processes; a float holds 53 bits of it.
    """
    return float(hash(tuple(values)) >> 11) if all(map(math.isfinite, values)) else math.nan


def is_uninformative(targets: list[float]) -> bool:
    """Whether targets do not depend on the data: one number (real and fake of a GAN), or
    0, 1, 2, ... (a contrastive loss)."""
    if len(targets) <= 2:
        return False
    step = targets[1] - targets[0]
    return all(b - a == step for a, b in pairwise(targets))


def are_consecutive(targets: list[float]) -> bool:
    """Whether targets are 0, 1, 2, ... or evenly spread ones of these (a contrastive loss)."""
    return is_uninformative(targets) and targets[1] != targets[0]


def step_size(
    before: list[float], after: list[float], gradient: list[float], precision: float
) -> float | None:
    """c, if the parameters changed by -c times the gradient; None if they changed otherwise.

    ``precision`` is that of the parameters, relative. If rounding hides the change, c is not known.
    """
    if not gradient or not len(before) == len(after) == len(gradient):
        return None
    changes = list(map(operator.sub, before, after))
    square = _square(gradient)
    rounding = [2 * precision * abs(value) for value in before]
    if not square or not math.isfinite(square) or not all(map(math.isfinite, after)):
        return None
    size = math.fsum(map(operator.mul, changes, gradient)) / square
    if size == 0 or math.fsum(rounding) > ROUNDED * math.fsum(map(abs, changes)):
        return None
    steps = [size * g for g in gradient]
    follows = all(
        abs(change - step) <= UNIFORM * abs(step) + error
        for change, step, error in zip(changes, steps, rounding, strict=True)
    )
    return size if follows else None


def relative_change(before: list[float], after: list[float]) -> float | None:
    """|after - before| / |before|, over the sampled coordinates."""
    size = math.sqrt(sum(b * b for b in before))
    if not size or len(before) != len(after):
        return None
    return math.sqrt(sum((a - b) ** 2 for a, b in zip(after, before, strict=True))) / size
