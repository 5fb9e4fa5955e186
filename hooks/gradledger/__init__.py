"""gradledger: hooks that record the weight of every token's gradient in PyTorch training.

Importing this package loads neither torch nor the hooks; ``watch`` does.
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
        return _monitor_attribute("gradledger_monitor.notebooks", name)
    if name == "FindingError":
        from gradledger import on_finding  # noqa: PLC0415

        return on_finding.FindingError
    raise AttributeError(f"module 'gradledger' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})


def _monitor_attribute(module: str, name: str) -> object:
    """An attribute of the monitor, which the training environment may lack."""
    import importlib  # noqa: PLC0415

    try:
        return getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as missing:
        message = f"gradledger.{name} needs the monitor. Run pip install 'gradledger[monitor]'"
        raise ImportError(f"{message} ({missing})") from missing
