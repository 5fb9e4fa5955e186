"""A loss whose reduction is inferred from what several micro-batches show."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

from gradledger.capture.async_copy import Deferred
from gradledger.records import Term


class Inferred(Protocol):
    """What one micro-batch shows of it."""

    def add_evidence(self) -> None:
        """Add what this one shows; once, before any of its window is resolved."""

    def resolve(self, term: Term) -> None:
        """Fill the wire record."""

    def deferred(self) -> Iterator[Deferred]:
        """The values that are read later."""


def add_evidence(inferred: Iterable[Inferred | None]) -> None:
    """Add what all micro-batches of a window show."""
    for each in inferred:
        if each is not None:
            each.add_evidence()
