"""Short messages to every process on one database: there are new records, a run was judged.

A message may be lost, and carries nothing that the database does not hold. Within one process,
which is all that an embedded database has, they are plain calls.
"""

from __future__ import annotations

from collections.abc import Callable

Subscriber = Callable[[str], None]


class PubSub:
    """Messages by topic, within this process."""

    def __init__(self) -> None:
        self._subscribers: dict[str, list[Subscriber]] = {}
        self._on_gap: list[Callable[[], None]] = []

    def subscribe(self, topic: str, subscriber: Subscriber) -> None:
        """Call ``subscriber`` with each message on a topic, in any thread."""
        self._subscribers.setdefault(topic, []).append(subscriber)

    def on_gap(self, call: Callable[[], None]) -> None:
        """Call this when messages may have been missed."""
        self._on_gap.append(call)

    def publish(self, topic: str, about: str, message: str = "") -> None:
        """Send a message; an earlier one about the same that is still here is replaced by it."""
        self._deliver(topic, message or about)

    def start(self) -> None:
        """Begin to send and to listen."""

    def stop(self) -> None:
        """End both."""

    def _deliver(self, topic: str, message: str) -> None:
        for subscriber in self._subscribers.get(topic, ()):
            subscriber(message)

    def _notify_gap(self) -> None:
        for call in self._on_gap:
            call()
