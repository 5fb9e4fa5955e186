"""gradledger: light hooks that account for the weight of every token's gradient.

Importing this package costs nothing: torch and the hooks are loaded by ``watch``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gradledger.reacting import FindingError
    from gradledger.watching import Ledger, watch

__version__ = "0.1.0"

__all__ = ["FindingError", "Ledger", "__version__", "watch"]


def __getattr__(name: str) -> object:
    if name in ("watch", "Ledger"):
        from gradledger import watching  # noqa: PLC0415 (torch is imported on first use)

        return getattr(watching, name)
    if name == "FindingError":
        from gradledger import reacting  # noqa: PLC0415

        return reacting.FindingError
    raise AttributeError(f"module 'gradledger' has no attribute {name!r}")
