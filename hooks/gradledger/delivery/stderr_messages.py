"""Messages about delivery: one line on standard error, once for each topic."""

from __future__ import annotations

from gradledger.stderr import write_line


class Notices:
    """The topics that a message was written about."""

    def __init__(self) -> None:
        self._written: set[str] = set()

    def once(self, topic: str, text: str) -> None:
        """Write the message, unless there was one about this topic before."""
        if topic not in self._written:
            self._written.add(topic)
            write_line(text)
