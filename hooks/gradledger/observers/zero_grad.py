"""Observes where the script zeroes gradients, in the first windows of an optimizer.

That gradients were zeroed, and when, is measured from the gradients themselves (``windows``). The
calls only show at which line of the script.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from torch.nn import Module
from torch.optim import Optimizer

from gradledger.observers.base import Observer

if TYPE_CHECKING:
    from gradledger.capture.windows import OpenWindows


class ZeroGradCalls(Observer):
    """Locates ``Optimizer.zero_grad`` and ``Module.zero_grad``."""

    def __init__(self, windows: OpenWindows) -> None:
        super().__init__()
        self._windows = windows
        self._active = True  # until every optimizer has closed its first windows

    def install(self) -> None:
        """Wrap both methods."""
        self.patch(Optimizer, "zero_grad", self._wrap)
        self.patch(Module, "zero_grad", self._wrap)

    def optimizer_created(self) -> None:
        """Its first windows come next."""
        self._active = True

    def _wrap(self, original: Any) -> Any:
        def zero_grad(owner: Any, /, *args: Any, **kwargs: Any) -> Any:
            if self._active:
                self.run_guarded(self._locate, owner)
            return original(owner, *args, **kwargs)

        return zero_grad

    def _locate(self, owner: Any) -> None:
        active = [window for window in self._windows if window.code.is_active(window.steps)]
        self._active = bool(active)
        cleared = {id(parameter) for parameter in _parameters(owner)}
        for window in active:
            if any(id(parameter) in cleared for parameter in window.probed_parameters):
                window.code.locate("zero_grad", window.steps)


def _parameters(owner: Any) -> Iterator[Any]:
    """Those of a module, or of an optimizer; a framework's wrapper has the same ones."""
    if isinstance(owner, Module):
        yield from owner.parameters()
    else:
        yield from (p for group in owner.param_groups for p in group["params"])
