"""Records as lines of JSON: see ``records.py`` for the wire format."""

from __future__ import annotations

import json
import math
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any

from gradledger.records import Record

_to_json = json.JSONEncoder(separators=(",", ":"), allow_nan=False, default=str).encode
_UNCHANGED = (int, str, bool, type(None))
_ALWAYS = ("v",)
_EMPTY: tuple[Any, ...] = ([], {})


def encode(record: Record) -> bytes:
    """The record as one line, with its newline. Absent and empty fields are omitted.

    The type is the first field, so that a decoder knows the fields that follow.
    """
    kind: Any = type(record)
    values = {"type": record.type, **_set_fields(record, _defaults(kind))}
    return _to_json(values).encode() + b"\n"


def _to_plain(value: Any) -> Any:
    kind: Any = type(value)
    if kind in _UNCHANGED:
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else _float_name(value)
    if isinstance(value, dict):
        return {str(k): _to_plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_to_plain(v) for v in value]
    return _set_fields(value, _defaults(kind)) if is_dataclass(value) else value


def _set_fields(record: Any, defaults: dict[str, Any]) -> dict[str, Any]:
    """The fields whose values are neither the default nor empty."""
    return {
        name: _to_plain(value)
        for name, value in vars(record).items()
        if name in _ALWAYS or (value != defaults[name] and value not in _EMPTY)
    }


@cache
def _defaults(kind: Any) -> dict[str, Any]:
    return {f.name: f.default for f in fields(kind)}


def _float_name(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"
