"""Groups of ranks under DDP that began with one model, and train several."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from gradledger_monitor.model.numbers import number
from gradledger_monitor.model.step_facts import StepFacts
from gradledger_monitor.rules.ddp.replicas import SAME, differ_by
from gradledger_monitor.rules.state import declare


class GroupsApart:
    """Compares the parameters of the group that is shown with those of the other ranks."""

    state: ClassVar[Mapping[str, Any]] = declare(
        were_equal=bool, since=int, windows=int, equal_again=bool, ranks=list[list[int]]
    )

    def __init__(self) -> None:
        self.were_equal = False
        self.since = 0  # the step from which they differ; most steps have no fingerprint
        self.windows = 0  # since then
        self.equal_again = False  # something makes them equal from time to time
        self.ranks: list[list[int]] = []  # those of the group, and the others

    def add(self, facts: StepFacts) -> None:
        """The fingerprints of one window."""
        others = [rank.parameters for rank in facts.run.apart]
        values = [number(record.parameters) for record in facts.records.values()]
        measured = [value for value in (*values, *others) if value is not None]
        if not others or len(measured) < len(values) + len(others):
            return
        self.ranks = [sorted(facts.records), [rank.rank for rank in facts.run.apart]]
        if not differ_by(measured, SAME):
            self.equal_again |= self.windows > 0
            self.were_equal, self.since, self.windows = True, 0, 0
        elif self.were_equal:
            self.since = self.since or facts.step
            self.windows = facts.step - self.since + 1


def shown(groups: Sequence[Sequence[int]]) -> str:
    """The ranks of each group: ``0, 1; 2, 3``."""
    return "; ".join(", ".join(map(str, group[:8])) for group in groups[:8])
