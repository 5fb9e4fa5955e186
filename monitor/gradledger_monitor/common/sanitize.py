"""Text of strangers, made safe for a terminal and for a log of lines."""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

T = TypeVar("T")


def printable(text: str) -> str:
    """The text with newlines, escape sequences and the like spelt out: ``\\n``, ``\\x1b``."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def sanitize(value: T) -> T:
    """The same value with every text in it printable, but for the ends of its lines."""
    made: Any = value
    if isinstance(value, str):
        made = "\n".join(map(printable, value.split("\n")))
    elif isinstance(value, dict):
        made = {sanitize(key): sanitize(item) for key, item in value.items()}
    elif isinstance(value, list):
        made = [sanitize(item) for item in value]
    elif is_dataclass(value) and not isinstance(value, type):
        told = {field.name: sanitize(getattr(value, field.name)) for field in fields(value)}
        made = replace(value, **told)
    return made  # type: ignore[no-any-return]
