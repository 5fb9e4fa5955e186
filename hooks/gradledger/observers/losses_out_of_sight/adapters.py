"""Installs the adapters: when a script imports a library, its loss functions note their calls.

Nothing is imported here. A function whose parameters are not those that the adapter reads stays
as it is.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

from gradledger import guard
from gradledger.autostart.path.gradledger_autostart import ImportHook
from gradledger.observers.losses_out_of_sight import (
    cut_cross_entropy,
    kernels,
    liger,
    liger_objectives,
    pytorch,
    torchtitan,
    unsloth,
)
from gradledger.observers.losses_out_of_sight.adapter import (
    Adapter,
    noting_context,
    noting_forward,
    parameters_of,
)

ADAPTERS: tuple[Adapter, ...] = (
    *liger.ADAPTERS,
    *liger_objectives.ADAPTERS,
    *cut_cross_entropy.ADAPTERS,
    *pytorch.ADAPTERS,
    *torchtitan.ADAPTERS,
    *unsloth.ADAPTERS,
    *kernels.ADAPTERS,
)

ReplaceMethod = Callable[[Any, str, Callable[[Any], Any]], None]


class Adapters:
    """The adapters of one process. ``replace`` is that of the observer, which restores it all."""

    def __init__(self, replace: ReplaceMethod) -> None:
        self._replace = replace
        self._guard = guard.fail_open("an adapter of a loss function")
        self._import_hooks: list[ImportHook] = []

    def install(self) -> None:
        """Adapt functions whose modules are loaded, and others when they are imported."""
        for module in dict.fromkeys(adapter.module for adapter in ADAPTERS):
            hook = ImportHook(module, functools.partial(self._adapt, module))
            self._import_hooks.append(hook)
            hook.install()

    def uninstall(self) -> None:
        """Remove the import hooks."""
        while self._import_hooks:
            self._import_hooks.pop().uninstall()

    def _adapt(self, module: str) -> None:
        for adapter in ADAPTERS:
            if adapter.module == module:
                with self._guard:
                    self._adapt_function(adapter, sys.modules[module])

    def _adapt_function(self, adapter: Adapter, module: Any) -> None:
        owner = getattr(module, adapter.owner, None)
        if owner is None:
            return
        if adapter.method == "forward":
            names, _ = parameters_of(owner.forward, skip=1)  # the first one is the node
            node_at = int(isinstance(vars(owner).get("forward"), classmethod))
            wrapper = noting_forward(adapter, self._guard, node_at)
        else:
            names, _ = parameters_of(owner._init_fn, skip=0)
            wrapper = noting_context(adapter, names, self._guard)
        if adapter.fits(names):
            self._replace(owner, adapter.method, wrapper)
