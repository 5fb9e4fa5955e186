"""Optimizers whose step is not one call that applies the gradients of their parameters.

DeepSpeed's ZeRO puts flat shards into ``param_groups``, moves every gradient into its own buffers
and clears ``.grad``. That looks like a loop that zeroes the gradients of each micro-batch, and is
none. It also calls the optimizer once for each group of parameters: one step, in parts. Horovod's
optimizer calls the step of its base class in its own: one step, in two calls. One that accumulates
by itself does so in every K-th call: the others are none.
"""

from __future__ import annotations

import sys
from collections.abc import MutableMapping
from inspect import unwrap
from types import FunctionType
from typing import TYPE_CHECKING, Any

from gradledger.capture.open_records import OpenStep

if TYPE_CHECKING:
    from gradledger.capture.windows import OptimizerWindow

REASON = "the optimizer steps on its own buffers, as DeepSpeed's ZeRO does"
IN_PARTS = "the optimizer steps its parameter groups one after another, as DeepSpeed's ZeRO does"


def steps_on_own_buffers(step: OpenStep, window: OptimizerWindow) -> bool:
    """Whether the optimizer holds none of the parameters any more that backward reached."""
    if step.sample_at_step is not None or not step.micro_batches:
        return False  # the usual case: the optimizer steps on the gradients themselves
    held = {id(parameter) for parameter in window.parameters()}
    return not any(id(parameter) in held for parameter in window.probed_parameters)


def begins_step(window: OptimizerWindow, optimizer: Any) -> bool:
    """Whether the call that begins is the one that updates the parameters.

    Horovod's optimizer is a subclass of the script's, made at run time: its ``step`` combines the
    ranks, and calls that of the base class. PyTorch calls the step hooks in both, and the outer
    ones come before the gradients are complete. The first step shows it: its record is left out.
    """
    window.continued = _continues_step(window)
    window.calls += 1
    if window.may_idle is None:
        window.may_idle = _calls_base_step(type(optimizer))
    if window.may_idle and window.calls == 1:
        window.versions_at_step = window.read_versions()
    if window.calls > window.outer_calls + 1 and _hooked_steps(optimizer) > 1:
        window.outer_calls, window.partial = window.calls - 1, True
        return False
    return not window.continued and window.calls > window.outer_calls


def ends_step(
    window: OptimizerWindow, optimizer: Any, stepping: MutableMapping[int, OpenStep]
) -> bool:
    """Whether the call that ends has updated the parameters.

    An optimizer that accumulates by itself calls the step of its base class in every K-th call
    only: in the others the window goes on, unless there is nothing that it could accumulate.
    ``stepping`` has the open steps.
    """
    contained = window.calls <= window.outer_calls
    window.calls = max(window.calls - 1, 0)
    if window.continued or contained:
        return False
    if not window.versions_at_step or window.read_versions() != window.versions_at_step:
        return True
    step = stepping.get(id(optimizer))
    if step is not None and _has_nothing_to_apply(step, window):
        return True
    stepping.pop(id(optimizer), None)
    window.stepping = False
    if step is not None:
        _reopen(window, step)
    return False


def _has_nothing_to_apply(step: OpenStep, window: OptimizerWindow) -> bool:
    """Whether no backward reached the parameters, and none has a gradient: nothing accumulates."""
    return not step.micro_batches and all(p.grad is None for p in window.parameters())


def has_closure(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether the arguments of a step contain a closure."""
    arguments = [*args[1:], kwargs.get("closure")] if args else [kwargs.get("closure")]
    return any(callable(argument) for argument in arguments)


def _reopen(window: OptimizerWindow, step: OpenStep) -> None:
    """Undo that the window was closed: the loop goes on to accumulate."""
    for counted in step.micro_batches:
        counted.micro_batch.stepped_by.pop(step.optimizer, None)
    window.micro_batches = step.micro_batches + window.micro_batches
    window.events, window.steps = step.events + window.events, window.steps - 1
    window.sample_at_last_step = step.sample_at_last_step


def _calls_base_step(of: type) -> bool:
    """Whether a class overrides the step of one of PyTorch's optimizers, and calls that, too.

    PyTorch's own change the versions of the parameters; others may write past them.
    """
    for each in of.__mro__:
        if each.__module__.startswith("torch.optim"):
            return False
        functions = (unwrap(f) for f in vars(each).values() if isinstance(f, FunctionType))
        if any({"super", "step"} <= {*function.__code__.co_names} for function in functions):
            bases = of.__mro__[1:-2]  # without Optimizer itself, and object
            return any(base.__module__.startswith("torch.optim.") for base in bases)
    return False


def _hooked_steps(optimizer: Any) -> int:
    """How many classes of the optimizer have a step that calls the step hooks."""
    steps = (vars(each).get("step") for each in type(optimizer).__mro__)
    return sum(bool(getattr(step, "hooked", False)) for step in steps)


def _continues_step(window: OptimizerWindow) -> bool:
    """Whether the call that begins is a later part of a step: its parameters have not stepped yet.

    While steps are skipped, no backward is seen, so the parameters decide.
    """
    if not window.buffers:
        return False
    held = frozenset(map(id, window.parameters()))
    continues = held.isdisjoint(window.buffers)
    window.in_parts = window.in_parts or continues
    window.buffers = window.buffers | held if continues else held
    return continues


def record_own_buffers(step: OpenStep, window: OptimizerWindow) -> None:
    """Count all micro-batches, and mark the state of their gradients as not measured.

    ZeRO averages over the ranks, and leaves each rank a part of the gradients.
    """
    filled = sum(bool(group["params"]) for group in window.optimizer.param_groups)
    window.in_parts = window.in_parts or filled < window.groups
    if window.in_parts:
        step.missing["norm"] = IN_PARTS
    if not window.buffers:
        window.buffers = frozenset(map(id, window.parameters()))
    for counted in step.micro_batches:
        counted.sample_after = None
    for counted in step.micro_batches[1:]:
        counted.fresh, counted.sample_before = False, None
    step.fields["moved"] = True
    step.missing["post_factor"] = REASON
    if step.fields.get("sync") == "unknown" and "deepspeed" in sys.modules:
        step.fields["sync"] = "averaged"
        step.fields["sharded"] = True
