"""Observes that the script loads the state of an optimizer: it resumes from a checkpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.optim import Optimizer

from gradledger.observers.base import Observer

if TYPE_CHECKING:
    from gradledger.capture.windows import OpenWindows


class Resumes(Observer):
    """Notes ``load_state`` in the window of the optimizer."""

    def __init__(self, windows: OpenWindows) -> None:
        super().__init__()
        self._windows = windows

    def install(self) -> None:
        """Wrap ``Optimizer.load_state_dict``, which subclasses call, too."""
        self.patch(Optimizer, "load_state_dict", self._wrap_load)

    def _wrap_load(self, original: Any) -> Any:
        def load_state_dict(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(optimizer, *args, **kwargs)
            self.run_guarded(self._windows.add_own_event, "load_state", optimizer)
            return result

        return load_state_dict
