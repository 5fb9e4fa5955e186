"""Untrusted text made safe for terminals and line-based logs."""

from __future__ import annotations

import re
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

T = TypeVar("T")


_PARTS = re.compile(r"([\n\t])")


def printable(text: str) -> str:
    """The text with newlines, escape sequences and the like escaped: ``\\n``, ``\\x1b``."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def sanitize(value: T) -> T:
    """The value with every string in it printable, except for line ends and tabs."""
    result: Any = value
    if isinstance(value, str):
        result = "".join(p if p in ("\n", "\t") else printable(p) for p in _PARTS.split(value))
    elif isinstance(value, dict):
        result = {sanitize(key): sanitize(item) for key, item in value.items()}
    elif isinstance(value, list):
        result = [sanitize(item) for item in value]
    elif isinstance(value, tuple) and type(value) is tuple:
        result = tuple(sanitize(item) for item in value)
    elif is_dataclass(value) and not isinstance(value, type):
        values = {field.name: sanitize(getattr(value, field.name)) for field in fields(value)}
        result = replace(value, **values)
    return result  # type: ignore[no-any-return]
