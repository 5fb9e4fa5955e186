"""Shared by the rules on data parallelism."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from gradledger_monitor.ingest.schema import MicroBatch, Samples, StepRecord
from gradledger_monitor.model.findings import Outcome, Status, Withdrawal
from gradledger_monitor.model.numbers import number
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
from gradledger_monitor.rules.ddp.trained_apart import EQUALISED, MAYBE_OUTER_STEPS, MIXED
from gradledger_monitor.rules.rule import Precondition, Window, not_applicable, not_measured
from gradledger_monitor.rules.state import declare

SHOWS_A_PERIOD = 2  # times in which models became equal


def _not_parallel(window: Window) -> Outcome | None:
    """The outcome for one rank, or where collectives were not counted."""
    facts = window.facts
    if facts.run.world_size == 1:
        alone = facts.ranks == range(1)
        return not_applicable("one rank" if alone else "no other rank trains the same part")
    for record in facts.records.values():
        if "collectives" in record.missing:
            return not_measured(record.missing["collectives"])
    return None


SEVERAL_RANKS = Precondition("several ranks train together", _not_parallel)


def synced(record: StepRecord, micro_batch: MicroBatch) -> bool:
    """Whether this backward synchronised gradients; it may run other collectives, too."""
    if not micro_batch.collectives:
        return False
    if record.wrapper == "ddp" or micro_batch.wrapper is not None:
        return micro_batch.wrapper == "sync"
    return record.wrapper is not None


def may_be_divided(facts: StepFacts) -> bool:
    """Whether ranks without a wrapper may be those of model parallelism, and hold no replicas.

    Its signs: collectives inside backward, a rank without a loss, or equal losses on all ranks.
    Where hooks of the parameters are seen to combine gradients, the collectives are theirs.
    """
    if not _by_hooks(facts) and any(
        m.collectives for record in facts.records.values() for m in record.micro_batches
    ):
        return True
    ranks = list(facts.applied_by_rank.values())
    if not all(applied and all(m.terms for _, m in applied) for applied in ranks):
        return True
    losses = [[number(m.loss) for _, m in applied] for applied in ranks]
    return all(each == losses[0] for each in losses)


def averages_models(facts: StepFacts) -> bool:
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
        if not averages_models(facts):
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


def _exchange_models(facts: StepFacts, samples: Sequence[Samples]) -> bool:
    if len(samples) < len(facts.records) or len(samples) < 2:
        return False
    before, after = values_of(samples)
    return len({len(row) for row in before + after}) == 1 and keep_mean(before, after)


def norms_differ(facts: StepFacts) -> bool:
    """Whether the norms of the ranks' gradients are known and differ: nothing combined these."""
    if any("norm" in record.missing for record in facts.records.values()):
        return False
    norms = [number(r.norm) or 0.0 for r in facts.records.values()]
    return max(norms) - min(norms) > facts.tolerance * max(norms)


def _by_hooks(facts: StepFacts) -> bool:
    """Whether the gradients were combined by the end of backward: nothing communicated later."""
    combined = facts.all_reduce is not None and facts.all_reduce.is_combined
    return combined and all(
        record.before_hooks and not record.collectives_after for record in facts.records.values()
    )


def names(ranks: Sequence[int]) -> str:
    """The first ranks of a list, with their noun: ``Ranks 1, 2``."""
    shown = ", ".join(map(str, ranks[:8])) + (" ..." if len(ranks) > 8 else "")
    return f"Rank {shown}" if len(ranks) == 1 else f"Ranks {shown}"
