"""Text of strangers, made safe for a terminal and for a log of lines."""

from __future__ import annotations


def printable(text: str) -> str:
    """The text with newlines, escape sequences and the like spelt out: ``\\n``, ``\\x1b``."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
