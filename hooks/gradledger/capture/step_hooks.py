"""Hooks in the steps of all optimizers: those of PyTorch, and of other libraries.

An optimizer of another library may be no ``torch.optim.Optimizer``, so that PyTorch's hooks do not
run in its steps. Its class itself is patched, once the script has imported it:

- fastai's applies the gradients in ``.grad``, and lists ``param_groups``. Its ``SGD``, ``Adam`` and
  so on are functions that return an ``Optimizer``: users know it by the name of the function.
- Keras' gets gradients as arguments, and may accumulate them in its own buffers: ``apply`` updates
  the parameters in every K-th call, with the mean of the gradients of K calls. A ``KerasOptimizer``
  stands for it, and the observers read in ``.grad`` what it applies.
"""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

import torch
from torch.optim import Optimizer
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from gradledger import guard
from gradledger.autostart.path.gradledger_autostart import ImportHook
from gradledger.capture.isolation import capturing, isolated, never_compile
from gradledger.observers.base import Patch

FASTAI = "fastai.optimizer"  # read in fastai 2.8
F = TypeVar("F", bound=Callable[..., Any])

# the hooks before a step of any optimizer, ours included
_hooks_of_all: Any = getattr(
    sys.modules["torch.optim.optimizer"], "_global_optimizer_pre_hooks", ()
)

KERAS = "keras.src.optimizers.base_optimizer"  # read in Keras 3.15


class Hooks(NamedTuple):
    """What the recorder does around each step, and with a new optimizer."""

    add: Callable[..., None]  # (optimizer, name of its class)
    before: Callable[[Any, tuple[Any, ...], dict[str, Any]], None]
    after: Callable[[Any, tuple[Any, ...], dict[str, Any]], None]


class StepHooks:
    """Calls ``before`` and ``after`` around each step, and ``add`` after each ``__init__``."""

    def __init__(self, hooks: Hooks) -> None:
        self._hooks = hooks
        self._guard = guard.fail_open("the hooks of another library's optimizer")
        self._handles: list[Any] = []
        # by optimizer, a hook that is the last before its step, while it runs
        self._last: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
        self._import_hooks: list[ImportHook] = []
        self._patches: list[Patch] = []
        self._libraries = {FASTAI: self._patch_fastai, KERAS: self._patch_keras}

    def install(self) -> None:
        """Hook the optimizers of PyTorch, and others now or when their module is imported."""
        self._patches.append(Patch(Optimizer, "__init__", self._wrap_init))
        begin, end = (lambda *step: self._begin(*step)), (lambda *step: self._end(*step))
        self._handles.append(register_optimizer_step_pre_hook(outside_graphs(begin)))
        self._handles.append(register_optimizer_step_post_hook(outside_graphs(end)))
        for module, patch in self._libraries.items():
            import_hook = ImportHook(module, functools.partial(self._patch, module, patch))
            self._import_hooks.append(import_hook)
            import_hook.install()

    @never_compile
    def _begin(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """A step begins once the hooks of the script have run, which may change the gradients."""
        if _has_other_hooks(optimizer):
            with isolated(), self._guard:
                self._remove_last(optimizer)
                self._last[optimizer] = optimizer.register_step_pre_hook(self._hooks.before)
                return
        self._hooks.before(optimizer, args, kwargs)

    @never_compile
    def _end(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if self._last:  # not in the hook itself: PyTorch iterates over the hooks then
            with isolated(), self._guard:
                self._remove_last(optimizer)
        self._hooks.after(optimizer, args, kwargs)

    def _remove_last(self, optimizer: Any) -> None:
        handle = self._last.pop(optimizer, None)
        if handle is not None:
            handle.remove()

    def uninstall(self) -> None:
        """Restore everything, in reverse order."""
        while self._last:
            self._last.popitem()[1].remove()
        while self._import_hooks:
            self._import_hooks.pop().uninstall()
        while self._handles:
            self._handles.pop().remove()
        while self._patches:
            self._patches.pop().undo()

    def _patch(self, module: str, patch: Callable[[Any], None]) -> None:
        with isolated(), self._guard:
            patch(sys.modules[module])

    def _wrap_init(self, original: Any) -> Any:
        def __init__(optimizer: Any, /, *args: Any, **kwargs: Any) -> None:
            original(optimizer, *args, **kwargs)
            self._hooks.add(optimizer, type(optimizer).__name__)

        return __init__

    # ------------------------------------------------------------------ fastai

    def _patch_fastai(self, module: Any) -> None:
        wrap_init = functools.partial(self._wrap_init_of_fastai, module.Optimizer)
        self._patches.append(Patch(module.Optimizer, "__init__", wrap_init))
        self._patches.append(Patch(module.Optimizer, "step", self._wrap_step))

    def _wrap_init_of_fastai(self, base: type, original: Any) -> Any:
        def __init__(optimizer: Any, /, *args: Any, **kwargs: Any) -> None:
            original(optimizer, *args, **kwargs)
            kind = type(optimizer)
            function = _calling_function(FASTAI) if kind is base else None
            self._hooks.add(optimizer, function or kind.__name__)

        return __init__

    def _wrap_step(self, original: Any) -> Any:
        def step(optimizer: Any, /, *args: Any, **kwargs: Any) -> Any:
            self._hooks.before(optimizer, (optimizer, *args), kwargs)
            result = original(optimizer, *args, **kwargs)
            self._hooks.after(optimizer, (optimizer, *args), kwargs)
            return result

        return step

    # ------------------------------------------------------------------ Keras

    def _patch_keras(self, module: Any) -> None:
        """The only place that refers to what is private in Keras; without it, nothing is patched.

        Every update passes the gradients that it applies to ``_clip_gradients``, once.
        """
        base = module.BaseOptimizer
        calls = _CallsOfKeras(base, self._hooks, self._guard)
        for name, wrap in (
            ("_clip_gradients", calls.wrap_clip),
            ("_backend_apply_gradients", calls.wrap_apply),
            ("build", calls.wrap_build),
        ):
            self._patches.append(Patch(base, name, wrap, calls.optimizers.clear))


@never_compile
def _has_other_hooks(optimizer: Any) -> bool:
    """Whether PyTorch will call further hooks before the step."""
    own = getattr(optimizer, "_optimizer_step_pre_hooks", None)
    return bool(own) or len(_hooks_of_all) > 1


def outside_graphs(hook: F) -> F:
    """Mark a step hook: no compiled graph contains it.

    A compiled step breaks its graph for the hook. That costs no graph: PyTorch itself breaks it
    between the hooks and the update.
    """
    # The effect of torch.compiler.disable, without importing all of torch._dynamo.
    hook._torchdynamo_disable = True  # type: ignore[attr-defined]
    return never_compile(hook)


class KerasOptimizer:
    """Stands for an optimizer of Keras, with the parameters that it was built for."""

    def __init__(self, optimizer: Any, variables: Sequence[Any]) -> None:
        self._optimizer, self._variables = weakref.ref(optimizer), list(variables)
        self.state: dict[Any, Any] = {}  # its averages are not read
        self.updated: Sequence[Any] = ()  # variables of the call that runs
        self.stepped = False  # this call updates them
        self.assigned = False  # what it applied last was not in ``.grad``

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """One group with all parameters; with a learning rate unless it is computed."""
        rate = getattr(self._optimizer(), "_learning_rate", None)
        return [{"params": _parameters(self._variables), "lr": getattr(rate, "value", None)}]


class _CallsOfKeras:
    """Wrappers of the methods of Keras' optimizers."""

    def __init__(self, base: Any, hooks: Hooks, around: guard.fail_open) -> None:
        self._base, self._hooks, self._guard = base, hooks, around
        self.optimizers: weakref.WeakKeyDictionary[Any, KerasOptimizer] = (
            weakref.WeakKeyDictionary()
        )

    def wrap_build(self, original: Any) -> Any:
        def build(optimizer: Any, variables: Any) -> Any:
            result = original(optimizer, variables)
            with isolated(), self._guard:
                self._add(optimizer, variables)
            return result

        return build

    def _add(self, optimizer: Any, variables: Sequence[Any]) -> None:
        """Not one that leaves the update to others, as for a loss scale or for several models."""
        updates = type(optimizer).apply is self._base.apply and not capturing()
        if updates and all(isinstance(v, torch.Tensor) for v in _parameters(variables)):
            stand_in = self.optimizers[optimizer] = KerasOptimizer(optimizer, variables)
            self._hooks.add(stand_in, type(optimizer).__name__, late=True)

    def _stand_in(self, optimizer: Any) -> KerasOptimizer | None:
        with self._guard:
            return self.optimizers.get(optimizer)
        return None

    def wrap_apply(self, original: Any) -> Any:
        def apply(optimizer: Any, grads: Any, trainable_variables: Any) -> Any:
            stand_in = self._stand_in(optimizer)
            if stand_in is None:
                return original(optimizer, grads, trainable_variables)
            stand_in.updated, stand_in.stepped = trainable_variables, False
            try:
                result = original(optimizer, grads, trainable_variables)
            finally:
                stand_in.updated = ()
            if stand_in.stepped:
                self._hooks.after(stand_in, (stand_in,), {})
            return result

        return apply

    def wrap_clip(self, original: Any) -> Any:
        def clip(optimizer: Any, grads: Any) -> Any:
            stand_in = self._stand_in(optimizer)
            if stand_in is not None and stand_in.updated:
                with isolated(), self._guard:
                    self._begin(stand_in, grads)
            return original(optimizer, grads)

        return clip

    def _begin(self, stand_in: KerasOptimizer, gradients: Sequence[Any]) -> None:
        parameters = _parameters(stand_in.updated)
        pairs = zip(parameters, gradients, strict=True)
        stand_in.assigned = any(p.grad is not gradient for p, gradient in pairs)
        with _in_grad(parameters, gradients):
            stand_in.stepped = True
            self._hooks.before(stand_in, (stand_in,), {})


def _parameters(variables: Sequence[Any]) -> list[Any]:
    return [variable.value for variable in variables]


@contextmanager
def _in_grad(parameters: Sequence[Any], gradients: Sequence[Any]) -> Iterator[None]:
    """While observers read them, ``.grad`` of the parameters is what their optimizer applies."""
    before = [parameter.grad for parameter in parameters]
    try:
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        yield
    finally:
        for parameter, gradient in zip(parameters, before, strict=True):
            parameter.grad = gradient


def _calling_function(module: str) -> str | None:
    """The function of a module that has called what is patched."""
    frame: Any = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__", "").startswith("gradledger"):
        frame = frame.f_back
    is_of_module = frame is not None and frame.f_globals.get("__name__") == module
    return frame.f_code.co_name if is_of_module else None
