"""Groups of ranks under DDP or FSDP2 that began with one model, and may train several."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from gradledger_monitor.model.findings import Outcome
from gradledger_monitor.model.numbers import number
from gradledger_monitor.model.step_facts import StepFacts
from gradledger_monitor.rules.ddp.replicas import SAME, differ_by
from gradledger_monitor.rules.rule import not_measured
from gradledger_monitor.rules.state import declare


class GroupsApart:
    """Compares the parameters of the group that is shown with those of the other ranks.

    Most steps have no fingerprint, so an average of all models every few steps may fall between
    two of them, and looks the same as none: a difference is not measured, and no mistake.
    """

    state: ClassVar[Mapping[str, Any]] = declare(
        compared=int, were_equal=bool, differ=bool, ranks=list[list[int]]
    )

    def __init__(self) -> None:
        self.compared = 0  # steps with a fingerprint on all ranks
        self.were_equal = False  # at the first of them
        self.differ = False  # at the last one
        self.ranks: list[list[int]] = []  # those of the group, and the others

    def add(self, facts: StepFacts) -> None:
        """The fingerprints of one window."""
        others = [rank.parameters for rank in facts.run.apart]
        sharded = facts.record.wrapper == "fsdp2"  # the others of the group hold other shards
        members = [facts.record] if sharded else facts.records.values()
        values = [number(record.parameters) for record in members]
        measured = [value for value in (*values, *others) if value is not None]
        if not others or len(measured) < len(values) + len(others):
            return
        self.ranks = [sorted(facts.records), [rank.rank for rank in facts.run.apart]]
        self.differ = differ_by(measured, SAME)
        self.were_equal |= not self.compared and not self.differ
        self.compared += 1

    def unknown(self) -> Outcome | None:
        """Why the replicas are not compared; None if all ranks, or only the group, have them."""
        if not self.were_equal or (self.compared > 1 and not self.differ):
            return None
        group, others = (shown([ranks]) for ranks in self.ranks)
        return not_measured(
            f"the wrapper combines the gradients of ranks {group} alone; ranks {others}, with "
            "other data, started from the same parameters: whether all are meant to be one model, "
            "or are averaged from time to time, is not known"
        )


def shown(groups: Sequence[Sequence[int]]) -> str:
    """The ranks of each group: ``0, 1; 2, 3``."""
    return "; ".join(", ".join(map(str, group[:8])) for group in groups[:8])
