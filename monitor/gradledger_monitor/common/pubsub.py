"""Short messages to every process on one database: there are new records, a run was judged.

A message may be lost, and carries nothing that the database does not hold. Within one process,
which is all that an embedded database has, they are plain calls.
"""

from __future__ import annotations

from collections.abc import Callable

Hear = Callable[[str], None]


class PubSub:
    """Messages by topic, within this process."""

    def __init__(self) -> None:
        self._hearers: dict[str, list[Hear]] = {}
        self._on_gap: list[Callable[[], None]] = []

    def hear(self, topic: str, hearer: Hear) -> None:
        """Call ``hearer`` with each message on a topic, in any thread."""
        self._hearers.setdefault(topic, []).append(hearer)

    def after_a_gap(self, call: Callable[[], None]) -> None:
        """Call this when messages may have been missed."""
        self._on_gap.append(call)

    def tell(self, topic: str, about: str, message: str = "") -> None:
        """Send a message; an earlier one about the same that is still here is replaced by it."""
        self._pass_on(topic, message or about)

    def start(self) -> None:
        """Begin to send and to listen."""

    def stop(self) -> None:
        """End both."""

    def _pass_on(self, topic: str, message: str) -> None:
        for hearer in self._hearers.get(topic, ()):
            hearer(message)

    def _tell_of_gap(self) -> None:
        for call in self._on_gap:
            call()
