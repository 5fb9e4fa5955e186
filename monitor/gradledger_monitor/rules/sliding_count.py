"""Counts how many of the last N steps had a property, in constant time per step."""

from __future__ import annotations

from collections import deque


def push(last: deque[bool], value: bool) -> int:
    """Append a value to the last N, and return by how much the number of true ones changes."""
    dropped = len(last) == last.maxlen and last[0]
    last.append(value)
    return int(value) - int(dropped)
