"""The losses of one call of a compiled graph: its plan on the live inputs of the call."""

from __future__ import annotations

import math
import weakref
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch.autograd.function import BackwardCFunction

from gradledger.capture.isolation import is_plain
from gradledger.observers.losses import saved_hooks
from gradledger.observers.losses_compiled.plan import (
    Operation,
    Passage,
    Plan,
    PlannedLoss,
    Slot,
)

CHANGED = "the inputs of the compiled function were changed in place"
UNREADABLE = "an input of the compiled function holds no numbers that can be read"
FAILED = "the part of the compiled graph that shows the weights failed"
NO_ENGINE = "this version of PyTorch does not show its autograd engine"
HOOKED = "saved-tensor hooks are active during backward"

_engine: Any = getattr(torch.autograd.Variable, "_execution_engine", None)


class CompiledOutput:
    """One output of one call, as long as its autograd node lives."""

    def __init__(
        self,
        plan: Plan,
        args: tuple[Any, ...],
        versions: list[int | None],
        device: torch.device,
    ) -> None:
        self.plan, self.device = plan, device
        self._inputs = [args[position] for position, _ in plan.inputs]
        self._versions = versions

    def read(self) -> LiveLosses:
        """The values that its losses are read from. They are computed once, when first needed."""
        return LiveLosses(self)

    def values(self) -> dict[int, Any]:
        """The inputs by slot; raises ``Unreadable``."""
        if self._versions != versions_of(self._inputs):
            raise UnreadableError(CHANGED)
        if not all(is_plain(each) for each in self._inputs if isinstance(each, torch.Tensor)):
            raise UnreadableError(UNREADABLE)
        return dict(zip((slot for _, slot in self.plan.inputs), self._inputs, strict=True))


class UnreadableError(Exception):
    """The losses cannot be read; the message states why."""


class LiveLoss(NamedTuple):
    """A loss and the derivatives of the output."""

    target: torch.Tensor | None
    shape: tuple[int, ...]  # of the target
    ignored: int | None
    class_weights: torch.Tensor | None
    weight: torch.Tensor | float  # derivative with respect to the loss, of its shape
    elements: int | None  # that the outermost reduction reduces
    element_weight: torch.Tensor | None  # derivative with respect to this reduction


@dataclass(slots=True)
class CompiledLoss:
    """The place of one loss: which output's, and which of its losses."""

    live: LiveLosses
    index: int
    node: Any
    output: int  # of the autograd node

    @property
    def planned(self) -> PlannedLoss:
        """What the graph shows of it."""
        return self.live.output.plan.losses[self.index]


class LiveLosses:
    """The losses of one output; see ``CompiledOutput.read``."""

    def __init__(self, output: CompiledOutput) -> None:
        self.output = output
        self._losses: list[LiveLoss] | None = None

    def __getitem__(self, index: int) -> LiveLoss:
        if self._losses is None:
            try:
                with torch.no_grad():
                    self._losses = _evaluate(self.output, self.output.values())
            except (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError) as error:
                raise UnreadableError(f"{FAILED}: {type(error).__name__}") from error
        return self._losses[index]


def _evaluate(output: CompiledOutput, values: dict[int, Any]) -> list[LiveLoss]:
    plan = output.plan
    for operation in plan.before:
        _run(operation, values)
    shapes = [_shape(loss, values) for loss in plan.losses]
    derivatives = _derivatives(output, values, shapes)
    return [
        LiveLoss(
            None if loss.target is None else _filled(loss.target, values),
            shape,
            _filled(loss.ignored, values),
            _filled(loss.class_weights, values),
            *derivative,
        )
        for loss, shape, derivative in zip(plan.losses, shapes, derivatives, strict=True)
    ]


def _shape(loss: PlannedLoss, values: dict[int, Any]) -> tuple[int, ...]:
    if loss.shape is not None:
        return loss.shape
    return tuple(_filled(loss.target, values).shape)


_Derivative = tuple["torch.Tensor | float", "int | None", "torch.Tensor | None"]


def _derivatives(
    output: CompiledOutput, values: dict[int, Any], shapes: list[tuple[int, ...]]
) -> list[_Derivative]:
    """The derivatives of the output with respect to its losses, and to their reductions.

    The output is a linear function of the losses, so that their values do not matter.
    """
    plan = output.plan
    if not plan.tail:
        return [(1.0, None, None)]
    if _engine is None:
        raise UnreadableError(NO_ENGINE)
    if saved_hooks.may_be_active():
        raise UnreadableError(HOOKED)
    device = _device(values) or output.device
    with torch.enable_grad():
        for loss, shape in zip(plan.losses, shapes, strict=True):
            size = shape if loss.reduction == "none" else ()
            values[loss.slot] = torch.zeros(
                size, dtype=loss.dtype, device=device, requires_grad=True
            )
        counts: dict[int, int] = {}
        for operation in plan.tail:
            _run(operation, values)
            counts[operation.slot] = _size_of_first(operation, values)
    wanted = [values[loss.slot] for loss in plan.losses]
    reductions = sorted({loss.outermost for loss in plan.losses if loss.outermost is not None})
    wanted += [values[slot] for slot in reductions]
    result = values[plan.slot]
    gradients = _engine.run_backward(
        (result,),
        (torch.ones_like(result),),
        False,
        False,
        tuple(wanted),
        True,
        accumulate_grad=False,
    )
    of_reductions = dict(zip(reductions, gradients[len(plan.losses) :], strict=True))
    return [
        (
            torch.zeros_like(values[loss.slot]) if gradient is None else gradient,
            None if loss.outermost is None else counts[loss.outermost],
            None if loss.outermost is None else of_reductions[loss.outermost],
        )
        for loss, gradient in zip(plan.losses, gradients, strict=False)
    ]


def _device(values: dict[int, Any]) -> torch.device | None:
    """Of the inputs with more than one number; None if there is none."""
    tensors = [each for each in values.values() if isinstance(each, torch.Tensor)]
    return next((t.device for t in tensors if t.dim()), None)


def _size_of_first(operation: Operation, values: dict[int, Any]) -> int:
    first = operation.args[0] if operation.args else None
    value = _filled(first, values)
    return math.prod(value.shape) if isinstance(value, torch.Tensor) else 1


def _run(operation: Operation, values: dict[int, Any]) -> None:
    args = _filled(operation.args, values)
    kwargs = {name: _filled(value, values) for name, value in operation.kwargs.items()}
    values[operation.slot] = operation.function(*args, **kwargs)


def _filled(argument: Any, values: dict[int, Any]) -> Any:
    """The argument with the values of its slots."""
    if isinstance(argument, Slot):
        return values[argument.number]
    if isinstance(argument, (tuple, list)):
        return type(argument)(_filled(each, values) for each in argument)
    if isinstance(argument, slice):
        parts = (argument.start, argument.stop, argument.step)
        return slice(*(_filled(each, values) for each in parts))
    return argument


def versions_of(tensors: list[Any]) -> list[int | None]:
    """The versions of tensors, which change with each write; None of other values."""
    return [
        int(each._version) if isinstance(each, torch.Tensor) and not each.is_inference() else None
        for each in tensors
    ]


class PassedOn(NamedTuple):
    """What one output of a call is a linear function of."""

    numbers: tuple[tuple[Any, int], ...]  # their autograd nodes, and the outputs of these
    divided: bool


# By autograd node, then by output of the node.
_outputs: weakref.WeakKeyDictionary[Any, dict[int, CompiledOutput]] = weakref.WeakKeyDictionary()
_passed_on: weakref.WeakKeyDictionary[Any, dict[int, PassedOn]] = weakref.WeakKeyDictionary()


def remember(
    plan: Plan | Passage, args: tuple[Any, ...], versions: list[int | None], result: torch.Tensor
) -> None:
    """Note a call, if the graph was compiled with its backward."""
    node = result.grad_fn
    if not isinstance(node, BackwardCFunction):
        return
    if isinstance(plan, Plan):
        output = CompiledOutput(plan, args, versions, result.device)
        _outputs.setdefault(node, {})[result.output_nr] = output
        return
    numbers = tuple((args[i].grad_fn, args[i].output_nr) for i in plan.numbers)
    if all(below is not None for below, _ in numbers):  # else it is a parameter
        _passed_on.setdefault(node, {})[result.output_nr] = PassedOn(numbers, plan.divided)


def passed_on(node: Any, output: int) -> PassedOn | None:
    """The numbers that an output of a node is a linear function of; None if that is not known."""
    return _passed_on.get(node, {}).get(output) if isinstance(node, BackwardCFunction) else None


def compiled_losses(node: Any, output: int) -> list[CompiledLoss]:
    """The losses that an output of a node is a function of; none if that is not known."""
    if not isinstance(node, BackwardCFunction):
        return []
    call = _outputs.get(node, {}).get(output)
    if call is None:
        return []
    live = call.read()
    return [
        CompiledLoss(live, index, node, output)
        for index, loss in enumerate(call.plan.losses)
        if loss.trains
    ]
