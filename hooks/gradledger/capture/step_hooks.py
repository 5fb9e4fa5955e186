"""Hooks in the steps of all optimizers: those of PyTorch, and of other libraries.

An optimizer of another library may be no ``torch.optim.Optimizer``, but apply the gradients in
``.grad`` and list ``param_groups``, as fastai's does. PyTorch's hooks do not run in its steps, so
that the class itself is patched, once the script has imported it.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

from torch.optim import Optimizer
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from gradledger import guard
from gradledger.autostart.path.gradledger_autostart import ImportHook
from gradledger.capture.isolation import isolated
from gradledger.observers.base import Patch

CLASSES = {"fastai.optimizer": "Optimizer"}  # by module; read in fastai 2.8

StepHook = Callable[[Any, tuple[Any, ...], dict[str, Any]], None]


class StepHooks:
    """Calls ``before`` and ``after`` around each step, and wraps ``__init__``."""

    def __init__(self, wrap_init: Callable[[Any], Any], before: StepHook, after: StepHook) -> None:
        self._wrap_init, self._before, self._after = wrap_init, before, after
        self._guard = guard.fail_open("the hooks of another library's optimizer")
        self._handles: list[Any] = []
        self._import_hooks: list[ImportHook] = []
        self._patches: list[Patch] = []

    def install(self) -> None:
        """Hook the optimizers of PyTorch, and others now or when their module is imported."""
        self._patches.append(Patch(Optimizer, "__init__", self._wrap_init))
        self._handles.append(register_optimizer_step_pre_hook(self._before))
        self._handles.append(register_optimizer_step_post_hook(self._after))
        for module in CLASSES:
            if module in sys.modules:
                self._patch(module)
            else:
                import_hook = ImportHook(module, functools.partial(self._patch, module))
                import_hook.install()
                self._import_hooks.append(import_hook)

    def uninstall(self) -> None:
        """Restore everything, in reverse order."""
        while self._import_hooks:
            self._import_hooks.pop().uninstall()
        while self._handles:
            self._handles.pop().remove()
        while self._patches:
            self._patches.pop().undo()

    def _patch(self, module: str) -> None:
        with isolated(), self._guard:
            owner = getattr(sys.modules[module], CLASSES[module])
            self._patches.append(Patch(owner, "__init__", self._wrap_init))
            self._patches.append(Patch(owner, "step", self._wrap_step))

    def _wrap_step(self, original: Any) -> Any:
        def step(optimizer: Any, /, *args: Any, **kwargs: Any) -> Any:
            self._before(optimizer, (optimizer, *args), kwargs)
            result = original(optimizer, *args, **kwargs)
            self._after(optimizer, (optimizer, *args), kwargs)
            return result

        return step
