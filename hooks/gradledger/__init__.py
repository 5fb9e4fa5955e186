"""gradledger: light hooks that account for the weight of every token's gradient.

Importing this package costs nothing: torch and the hooks are loaded by ``watch``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from gradledger.api import Ledger, watch
    from gradledger.on_finding import FindingError

    load: Callable[..., Any]  # gradledger_monitor.notebooks.load

__version__ = "0.1.0"

__all__ = ["FindingError", "Ledger", "__version__", "load", "watch"]


def __getattr__(name: str) -> object:
    if name in ("watch", "Ledger"):
        from gradledger import api  # noqa: PLC0415 (torch is imported on first use)

        return getattr(api, name)
    if name == "load":
        return _of_the_monitor("gradledger_monitor.notebooks", name)
    if name == "FindingError":
        from gradledger import on_finding  # noqa: PLC0415

        return on_finding.FindingError
    raise AttributeError(f"module 'gradledger' has no attribute {name!r}")


def _of_the_monitor(module: str, name: str) -> object:
    """A name of the service, which need not be installed where training runs."""
    import importlib  # noqa: PLC0415

    try:
        return getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as missing:
        needs = f"gradledger.{name} needs the monitor: pip install 'gradledger[monitor]'"
        raise ImportError(f"{needs} ({missing})") from missing
