"""Ranks that average or exchange their models: local SGD, DiLoCo, gossip."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from gradledger_monitor.ingest.schema import Samples
from gradledger_monitor.model.findings import Outcome, Status, Withdrawal
from gradledger_monitor.model.ranks.manual_all_reduce import values_of
from gradledger_monitor.model.ranks.mixtures import (
    changes_of,
    is_outer_step,
    keep_mean,
    mixture_of,
)
from gradledger_monitor.model.ranks.rows import MIN_COORDINATES
from gradledger_monitor.model.step_facts import StepFacts
from gradledger_monitor.rules.ddp.replicas import SAME, differ_by
from gradledger_monitor.rules.state import declare

SHOWS_A_PERIOD = 2  # times in which models became equal

LOCAL_SGD = "local SGD: the ranks average their parameters from time to time"
AVERAGED = "the ranks average their parameters from time to time"
EQUALISED = "the ranks make their parameters equal from time to time"
MAYBE_OUTER_STEPS = (
    "the ranks step on their own gradients, and several times all of their models became one that "
    "is neither exactly their average nor that of one rank: whether an outer step or an average in "
    "half precision did this, or a checkpoint that all of them load, is not known"
)
MIXED = (
    "the ranks step on their own gradients, and exchange parts of their models: whether these mix "
    "over all ranks, as in gossip averaging, is not known"
)


class ModelAverages:
    """What the loop makes of the ranks' models between steps: local SGD, or DiLoCo.

    A copy of one rank's model on all of them, as before an evaluation, is no average. Equal models
    that are no average either come of an outer step, or of a checkpoint that all ranks load. The
    steps of SGD are recognised; those of other outer optimizers are not.
    """

    state: ClassVar[Mapping[str, Any]] = declare(
        equal=bool, mixed=bool, shown=bool, equalised=int, earlier=list[list[float]]
    )

    def __init__(self) -> None:
        self.equal = False  # the models have become equal
        self.mixed = False  # ranks have exchanged theirs, or parts of them
        self.shown = False  # they became an average, or a weighted one
        self.earlier: list[list[float]] = []  # of the last equal models: see ``is_outer_step``
        self.equalised = 0  # times in which they became equal, and neither averages nor copies

    def add(self, facts: StepFacts) -> None:
        """Take in what happened to the models before this step."""
        samples = [r.models for r in facts.records.values() if r.models is not None]
        if not _averages_models(facts):
            self.mixed |= _exchange_models(facts, samples)
            return
        self.equal = True
        if not samples:
            self.shown = True
            return
        before, after = values_of(samples)
        mixture = mixture_of(before, after)
        if mixture is None:
            return
        outer = mixture == "other" and is_outer_step(before, after[0], self.earlier)
        self.shown |= mixture == "average" or outer
        self.equalised += mixture == "other"
        self.earlier = changes_of(before, after[0], self.earlier)

    @property
    def mixes(self) -> bool:
        """Whether something besides the optimizers has made the models more alike."""
        return self.equal or self.mixed

    def outcome(
        self, status: Status, reason: str, apart: bool = True, other: bool = False
    ) -> Outcome:
        """Once the models have been mixed; that they became equal once withdraws nothing.

        ``apart``: the rule has reported that the ranks train apart. ``other``: it has reported
        something else, which averages of models do not disprove. A finding from before a restart
        without the rule's state is neither; later steps repeat it if it is of the other kind.
        """
        if self.shown:
            return Outcome(status, reason) if other else Withdrawal(status, reason)
        if not other and (self.mixed or (apart and self.equalised >= SHOWS_A_PERIOD)):
            return Withdrawal("not_measured", MIXED if self.mixed else MAYBE_OUTER_STEPS)
        return Outcome(status, EQUALISED)


def _averages_models(facts: StepFacts) -> bool:
    """Whether the ranks averaged their parameters before this step, by PyTorch's averager or so
    that parameters that differed became equal.

    A clamp or a norm of the weights changes them, too. What is clamped has one value or two.
    """
    records = facts.records.values()
    samples = [record.models for record in records if record.models is not None]
    if not samples:
        return any(record.averaging for record in records)
    if len(samples) < len(facts.records):
        return False
    rows = ([s.after_backward for s in samples], [s.at_step for s in samples])
    if len({len(values) for each in rows for values in each}) != 1:
        return False
    before, after = (list(zip(*each, strict=True)) for each in rows)
    equal = {
        abs(float(now[0]))
        for then, now in zip(before, after, strict=True)
        if differ_by(list(map(float, then)), SAME) and not differ_by(list(map(float, now)), SAME)
    }
    return len(equal) >= MIN_COORDINATES


def _exchange_models(facts: StepFacts, samples: Sequence[Samples]) -> bool:
    if len(samples) < len(facts.records) or len(samples) < 2:
        return False
    before, after = values_of(samples)
    return len({len(row) for row in before + after}) == 1 and keep_mean(before, after)
