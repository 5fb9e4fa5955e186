"""Names of tables and columns in archives of versions 1 and 2, with those of today."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_TABLES = {"silences": "inactivity", "stretches": "buckets"}
_COLUMNS = {
    "acknowledgements": {"seen_step": "last_step"},
    "progress": {"given_up": "pruned"},
    "buckets": {"stretch": "bucket"},
}


def current_table(name: str) -> str:
    """The name of a table today."""
    return _TABLES.get(name, name)


def current_columns(table: str, values: Mapping[str, Any]) -> Mapping[str, Any]:
    """The values of a row by the names of columns today; ``table`` is a name of today."""
    renamed = _COLUMNS.get(table, {})
    return {renamed.get(column, column): value for column, value in values.items()}
