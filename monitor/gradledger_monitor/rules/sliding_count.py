"""Of how many of the last steps something was true, at a cost that knows no number of steps."""

from __future__ import annotations

from collections import deque


def slide(last: deque[bool], answer: bool) -> int:
    """Take in the next answer of as many as ``last`` holds, and tell by how much the number of
    those that are true has changed."""
    gone = len(last) == last.maxlen and last[0]
    last.append(answer)
    return int(answer) - int(gone)
