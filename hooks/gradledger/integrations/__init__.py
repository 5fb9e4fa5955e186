"""Callbacks for training frameworks: evaluation metrics, checkpoints, planned number of steps.

The hooks record everything else without them. ``FrameworkCallbacks`` registers a callback with each
framework that a script imports, while a session is open. A script may also add one itself.
"""

from __future__ import annotations

import functools
import importlib
import sys

from gradledger import guard
from gradledger.autostart.path.gradledger_autostart import ImportHook

# When the module on the left is imported, the integration on the right registers its callback.
FRAMEWORKS = {
    "transformers.trainer": "transformers",
    "lightning.pytorch.trainer.connectors.callback_connector": "lightning",
    "pytorch_lightning.trainer.connectors.callback_connector": "lightning",
}


class FrameworkCallbacks:
    """Registers a callback with each framework, at its import at the latest."""

    def __init__(self) -> None:
        self._import_hooks: list[ImportHook] = []
        self._added: list[tuple[str, str]] = []

    def install(self) -> None:
        """Register with frameworks that are loaded, and with others when they are imported."""
        for module, integration in FRAMEWORKS.items():
            import_hook = ImportHook(module, functools.partial(self._add, module, integration))
            self._import_hooks.append(import_hook)
            import_hook.install()

    def uninstall(self) -> None:
        """Remove the import hooks and the callbacks."""
        while self._import_hooks:
            self._import_hooks.pop().uninstall()
        while self._added:
            module, integration = self._added.pop()
            with guard.fail_open(f"integration {integration}"):
                importlib.import_module(f"{__name__}.{integration}").remove(sys.modules[module])

    def _add(self, module: str, integration: str) -> None:
        with guard.fail_open(f"integration {integration}"):
            importlib.import_module(f"{__name__}.{integration}").add(sys.modules[module])
            self._added.append((module, integration))
