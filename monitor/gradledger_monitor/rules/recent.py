"""Of how many of the last steps something was true (pure)."""

from __future__ import annotations

from collections import deque


class Recent:
    """The last ``span`` answers to a question, and how many of them were yes.

    They are counted as they come and go: the cost of a step does not depend on the span.
    """

    def __init__(self, span: int) -> None:
        self._last: deque[bool] = deque(maxlen=span)
        self.seen = 0
        self.true = 0

    def add(self, answer: bool) -> None:
        """Take the next answer in."""
        if self.seen == self._last.maxlen:
            self.true -= self._last[0]
        else:
            self.seen += 1
        self._last.append(answer)
        self.true += answer
