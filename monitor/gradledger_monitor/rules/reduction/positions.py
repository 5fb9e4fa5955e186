"""Micro-batches of equal counts with different weights: by their position, or by their data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from gradledger_monitor.model.objectives import Objective
from gradledger_monitor.model.token_ledger import Entry
from gradledger_monitor.rules.state import declare


class Positions:
    """The weights of each objective's micro-batches in the last window where they differed.

    A mean of means gives micro-batches of equal counts equal weights. Other weights are a mistake
    of the loop if they follow from the place in the window (the first one is not divided), and may
    be intended if they follow from the data, such as a loss divided by its detached value.
    """

    state: ClassVar[Mapping[str, Any]] = declare(
        last=dict[str, list[float]], first=dict[str, list[int]]
    )

    def __init__(self) -> None:
        self.last: dict[str, list[float]] = {}  # by objective: the weights in order
        self.first: dict[str, list[int]] = {}  # the first window that had them

    def may_be_of_data(self, objective: Objective, tolerance: float, step: int) -> bool:
        """Whether counts are equal, and the weights differ from those in the window before."""
        if not _has_equal_counts(objective):
            return False
        weights = [e.relative for e in sorted(objective.ledger.entries, key=_position)]
        before = self.last.get(objective.name, [])
        self.last[objective.name] = weights
        differ = len(before) != len(weights) or any(
            abs(a - b) > tolerance * max(a, b) for a, b in zip(before, weights, strict=True)
        )
        if differ:
            self.first[objective.name] = [step]
        return differ

    def before(self, objective: Objective, step: int) -> list[int]:
        """The window before whose weights are shown to follow from the position; empty if none."""
        first = self.first.get(objective.name, []) if _has_equal_counts(objective) else []
        return [each for each in first if each < step]


def _has_equal_counts(objective: Objective) -> bool:
    return len({entry.tokens for entry in objective.ledger.entries}) == 1


def _position(entry: Entry) -> tuple[int, int, str]:
    return entry.rank, entry.micro_batch, entry.term
