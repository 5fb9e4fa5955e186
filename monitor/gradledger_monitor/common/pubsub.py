"""Short messages to every process on one database: new records arrived, a run was evaluated.

A message may be lost, and contains nothing that the database does not. An embedded database has
one process only, in which messages are plain calls.
"""

from __future__ import annotations

from collections.abc import Callable

Subscriber = Callable[[str], None]


class PubSub:
    """Messages by topic, within this process."""

    def __init__(self) -> None:
        self._subscribers: dict[str, list[Subscriber]] = {}
        self._gap_callbacks: list[Callable[[], None]] = []

    def subscribe(self, topic: str, subscriber: Subscriber) -> None:
        """Call ``subscriber`` with each message on a topic, in any thread."""
        self._subscribers.setdefault(topic, []).append(subscriber)

    def on_gap(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` whenever messages may have been missed."""
        self._gap_callbacks.append(callback)

    def publish(self, topic: str, key: str, message: str = "") -> None:
        """Send a message, by default the key. It replaces an unsent one with the same key."""
        self._deliver(topic, message or key)

    def start(self) -> None:
        """Start sending and receiving."""

    def stop(self) -> None:
        """Stop sending and receiving."""

    def _deliver(self, topic: str, message: str) -> None:
        for subscriber in self._subscribers.get(topic, ()):
            subscriber(message)

    def _notify_gap(self) -> None:
        for callback in self._gap_callbacks:
            callback()
