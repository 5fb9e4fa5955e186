"""What the hooks add to training frameworks: evaluation metrics and the planned number of steps.

Everything else of a framework's run is seen without it. ``Found`` adds our callbacks to the
frameworks that a script imports, for as long as a session is open; a script may also name them.
"""

from __future__ import annotations

import functools
import importlib
import sys

from gradledger import guard
from gradledger.autostart.path.gradledger_autostart import Watcher

# When the module on the left has been imported, the one on the right adds our callback to it.
FRAMEWORKS = {
    "transformers.trainer": "transformers",
    "lightning.pytorch.trainer.connectors.callback_connector": "lightning",
    "pytorch_lightning.trainer.connectors.callback_connector": "lightning",
}


class Found:
    """The frameworks of this process, watched from the moment they are imported."""

    def __init__(self) -> None:
        self._watchers: list[Watcher] = []
        self._added: list[tuple[str, str]] = []

    def install(self) -> None:
        """Add our callback to what is imported already, and to the rest when it comes."""
        for module, ours in FRAMEWORKS.items():
            if module in sys.modules:
                self._add(module, ours)
            else:
                watcher = Watcher(module, functools.partial(self._add, module, ours))
                watcher.arm()
                self._watchers.append(watcher)

    def uninstall(self) -> None:
        """Take everything back."""
        while self._watchers:
            self._watchers.pop().disarm()
        while self._added:
            module, ours = self._added.pop()
            with guard.fail_open(f"integration {ours}"):
                importlib.import_module(f"{__name__}.{ours}").remove(sys.modules[module])

    def _add(self, module: str, ours: str) -> None:
        with guard.fail_open(f"integration {ours}"):
            importlib.import_module(f"{__name__}.{ours}").add(sys.modules[module])
            self._added.append((module, ours))
