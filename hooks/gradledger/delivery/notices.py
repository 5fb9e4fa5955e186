"""What delivery has to say to a person: one line on standard error, once for each topic."""

from __future__ import annotations

import sys
from contextlib import suppress


class Notices:
    """The topics that were spoken of."""

    def __init__(self) -> None:
        self._told: set[str] = set()

    def once(self, topic: str, text: str) -> None:
        """Say it, unless something was said on the topic before."""
        if topic not in self._told:
            self._told.add(topic)
            say(text)


def say(text: str) -> None:
    """One line; a process without a standard error hears nothing."""
    with suppress(OSError, ValueError, AttributeError):
        sys.stderr.write(f"gradledger: {text}\n")
