"""What the tests of databases need."""

from __future__ import annotations

from integration.service.conftest import postgres

__all__ = ["postgres"]
