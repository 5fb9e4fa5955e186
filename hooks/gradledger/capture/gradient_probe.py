"""A few coordinates of a few gradients: enough to see what is done to all of them.

``Coordinates`` copies them on the training thread; the rest compares copies on the background
thread.
"""

from __future__ import annotations

import math
import operator
import weakref
from itertools import cycle, pairwise
from typing import Any, NamedTuple

import torch

from gradledger.capture.async_copy import Deferred, as_real, numbers
from gradledger.capture.isolation import is_plain, local_part

COORDINATES = 16  # of each watched parameter
FEW = 16  # of all, where a sample itself is sent

# Relative deviation between coordinates up to which a change of the gradient is one factor.
UNIFORM = 1e-3
UNIFORM_HALF = 2e-2


class Coordinates:
    """Coordinates of a few parameters' gradients.

    The views are cached as long as the gradients are the same tensors, so that a copy is one call.
    Views share the gradients' memory, so they go with the first gradient that the script drops.
    """

    def __init__(self) -> None:
        self._gradients: list[int] = []
        self._watches: list[weakref.ref[Any]] = []
        self._views: list[torch.Tensor] = []

    def copy(self, parameters: list[Any]) -> Deferred | None:
        """The coordinates as they are, in a fixed order; None when there are no gradients."""
        gradients = [g for g in (p.grad for p in parameters) if g is not None]
        known = list(map(id, gradients))
        if known != self._gradients:
            self._watches = [weakref.ref(gradient, self._dropped) for gradient in gradients]
            self._gradients, self._views = known, _views(gradients, COORDINATES)
        return _together(self._views)

    def release(self) -> None:
        """Drop the views."""
        self._gradients, self._watches, self._views = [], [], []

    def _dropped(self, watch: weakref.ref[Any]) -> None:
        """A gradient is gone; it may be one whose views were dropped before."""
        if any(watch is each for each in self._watches):
            self.release()


def read(tensor: Any, most: int) -> Deferred | None:
    """Evenly spread numbers of a tensor that may be written over; None when it has none."""
    view = coordinates(tensor, most)
    return None if view is None else Deferred(view, volatile=True)


def copy(tensors: list[Any], most: int = COORDINATES) -> Deferred | None:
    """Copies of evenly spread coordinates of each tensor; None when there are none."""
    return _together(_views(tensors, most))


def _together(views: list[torch.Tensor]) -> Deferred | None:
    """On the CPU to read is faster than to copy."""
    if not views:
        return None
    if all(view.is_cpu for view in views):
        return Deferred.of([number for view in views for number in numbers(view)])
    return Deferred(torch.cat([as_real(view).reshape(-1) for view in views]))


def _views(tensors: list[Any], most: int) -> list[torch.Tensor]:
    return [view for view in (coordinates(t, most) for t in tensors) if view is not None]


def coordinates(tensor: Any, most: int = COORDINATES) -> torch.Tensor | None:
    """A view of evenly spread numbers of a tensor; None when it has none that can be read."""
    local = local_part(tensor)
    if local.layout is not torch.strided or not is_plain(local):
        return None
    size = local.numel()
    if size == 0:
        return None
    count = min(most, size)
    stride = size // count
    flat: torch.Tensor = local.data  # a view of the tensor itself would keep it alive
    if flat.is_contiguous() or _channels_last(flat):
        return flat.as_strided((count,), (stride,), flat.storage_offset())
    return flat.reshape(-1)[: count * stride : stride]


def _channels_last(tensor: torch.Tensor) -> bool:
    return tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last)


def common_factor(before: list[float], after: list[float], tolerance: float) -> float | str:
    """The one number that turns ``before`` into ``after``, or why there is none."""
    if len(before) != len(after):
        return "the set of gradients changed between backward and the step"
    ratios = sorted(b / a for a, b in zip(before, after, strict=True) if a != 0)
    if not ratios:
        return "all sampled gradients are zero"
    middle = ratios[len(ratios) // 2]
    if not all(abs(r - middle) <= tolerance * abs(middle) for r in ratios):
        return "the gradients were changed after backward, not scaled by one number"
    return middle


class End(NamedTuple):
    """The accumulated gradients when a backward had ended."""

    values: list[float]
    fresh: bool  # it began with none
    combined: bool  # it ended with those of all ranks


def noise(ends: list[End]) -> list[float]:
    """|G_small|^2 and |G_big|^2 over the sampled coordinates, for the gradient noise scale.

    A micro-batch's own gradient is the difference to the one before, K times which estimates the
    same as their sum (McCandlish et al. 2018, arXiv:1812.06162, appendix A.1). Where a backward
    ended with the gradients of all ranks, its own is not to be seen.
    """
    if len(ends) < 2 or len({len(end.values) for end in ends}) != 1:
        return []
    earlier, squares = [0.0] * len(ends[0].values), []
    for values, fresh, combined in ends:
        base = [0.0] * len(values) if fresh else earlier
        if not combined:
            squares.append(len(ends) ** 2 * _square(list(map(operator.sub, values, base))))
        earlier = values
    return [sum(squares) / len(squares), _square(earlier)] if squares else []


def _square(vector: list[float]) -> float:
    return math.fsum(map(operator.mul, vector, vector))


def fingerprint(values: list[float]) -> float:
    """A number that differs when any value does, but by chance; NaN where one is not finite."""
    if not all(map(math.isfinite, values)):
        return math.nan  # of opposite infinities there is no sum
    return math.fsum(map(operator.mul, values, cycle(range(1, 98))))


def says_nothing(targets: list[float]) -> bool:
    """One number all over, as a GAN's real and fake, or 0, 1, 2, ... as a contrastive loss's."""
    if len(targets) <= 2:
        return False
    step = targets[1] - targets[0]
    return all(b - a == step for a, b in pairwise(targets))


def relative_change(before: list[float], after: list[float]) -> float | None:
    """|after - before| / |before|, over the sampled coordinates."""
    size = math.sqrt(sum(b * b for b in before))
    if not size or len(before) != len(after):
        return None
    return math.sqrt(sum((a - b) ** 2 for a, b in zip(after, before, strict=True))) / size
