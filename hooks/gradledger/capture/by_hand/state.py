"""The parameters of a window at one moment, and what changed between two of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from gradledger.capture import gradient_probe
from gradledger.capture.async_copy import Deferred, joined
from gradledger.capture.isolation import local_part, version_of
from gradledger.capture.open_parts import OpenUpdate

if TYPE_CHECKING:
    from gradledger.capture.windows import OptimizerWindow


class State:
    """Some parameters at one moment: their versions, and a few of the values of each.

    And of their gradients, if asked for: they show which parameters an update follows.
    """

    def __init__(self, parameters: Sequence[Any], with_gradients: bool = False) -> None:
        self.ids = list(map(id, parameters))
        self.versions = [version_of(parameter) for parameter in parameters]
        self.values = [gradient_probe.copy_coordinates([p]) for p in parameters]
        self.on_cpu = all(local_part(p).is_cpu for p in parameters)
        self.gradients = [_gradient_of(p) for p in parameters] if with_gradients else []

    def changed(self, now: State) -> list[bool]:
        """Whether each parameter has changed."""
        return [self._has_changed(now, index) for index in range(min(len(self.ids), len(now.ids)))]

    def _has_changed(self, now: State, index: int) -> bool:
        same = self.ids[index] == now.ids[index]
        if same and self.versions[index] != now.versions[index]:
            return True
        if not (self.on_cpu and now.on_cpu):
            return False
        return numbers(self.values[index]) != numbers(now.values[index])


def update_of(
    window: OptimizerWindow, before: State, now: State, of_these: Sequence[int] | None = None
) -> OpenUpdate:
    """What changed between two states of the probed parameters of a window, or of some of them."""
    indices = range(len(now.values)) if of_these is None else of_these
    precision = max((precision_of(local_part(p)) for p in window.probed_parameters), default=0.0)
    then, after = ([state.values[index] for index in indices] for state in (before, now))
    return OpenUpdate(joined(then), joined(after), precision)


def _gradient_of(parameter: Any) -> list[float]:
    """Some values of its gradient; none if it has none, or has it on a device."""
    gradient = parameter.grad
    if gradient is None or not local_part(gradient).is_cpu:
        return []
    return numbers(gradient_probe.copy_coordinates([gradient]))


def precision_of(tensor: torch.Tensor) -> float:
    return torch.finfo(tensor.dtype).eps if tensor.is_floating_point() else 0.0


def numbers(values: Deferred | None) -> list[float]:
    return [] if values is None else values.values()
