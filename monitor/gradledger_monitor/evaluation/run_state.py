"""A run judged so far (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from gradledger_monitor.evaluation.engine import Engine
from gradledger_monitor.evaluation.evaluator_version import version
from gradledger_monitor.evaluation.quarantine import why
from gradledger_monitor.evaluation.snapshot_codec import (
    FORMAT,
    Position,
    Snapshot,
    SnapshotError,
    decode,
    encode,
)
from gradledger_monitor.evaluation.step_completeness import ArrivedStep
from gradledger_monitor.model import step_facts
from gradledger_monitor.model.chart_metrics import chart_metrics
from gradledger_monitor.model.findings import EvaluationResult
from gradledger_monitor.model.inactivity import Inactivity
from gradledger_monitor.model.numbers import MAX_INT64

OptimizerStep = tuple[int, int]  # optimizer, step


@dataclass
class EvaluatedStep:
    """One step as it is shown: the figures, and of how many ranks."""

    optimizer: int
    step: int
    time: float
    ranks: int
    figures: dict[str, float | None]
    failure: str | None = None  # why it could not be evaluated, or its figures not be computed

    def __init__(
        self,
        optimizer: int,
        step: int,
        time: float,
        ranks: int,
        figures: dict[str, float | None],
        failure: str | None = None,
    ) -> None:
        self.optimizer, self.step, self.time = optimizer, step, time
        self.ranks, self.figures, self.failure = ranks, figures, failure

    @classmethod
    def of(cls, one: step_facts.StepFacts | QuarantinedStep) -> EvaluatedStep:
        """A step's, once it was seen."""
        if isinstance(one, QuarantinedStep):
            return cls(one.optimizer, one.step, one.time, one.ranks, {}, one.reason)
        where = one.optimizer, one.step, one.time, len(one.records)
        try:
            return cls(*where, chart_metrics(one))
        except Exception as error:  # the rules have seen it: they ask for no figures
            return cls(*where, {}, why(one.step, error))


class QuarantinedStep(NamedTuple):
    """A step that could not be evaluated."""

    optimizer: int
    step: int
    time: float
    ranks: int
    reason: str


@dataclass
class RunState:
    """The state of a run's rules, and where it stands."""

    engine: Engine
    generation: int
    at: Position = field(default_factory=Position)
    silences: Mapping[OptimizerStep, Inactivity] = field(default_factory=dict)
    catching_up_to: dict[int, int] = field(default_factory=dict)
    kept_at: int = 0  # steps when it was last kept
    note: str | None = None  # on how this evaluation came about, until it is stored
    waits: dict[int, ArrivedStep] = field(default_factory=dict)  # what is waited for, by optimizer

    def see(
        self, info: step_facts.RunInfo, step: ArrivedStep
    ) -> step_facts.StepFacts | QuarantinedStep | None:
        """Feed one step to the rules; None where some rank skipped it: nothing is known of it.

        Raises nothing but ``MemoryError``: a step whose records break a computation is quarantined.
        """
        at, optimizer = self.at, step.optimizer
        resting = at.resting.get(optimizer, {})
        at.steps += step.step - at.reached.get(optimizer, 0) if resting else 1
        self.hear_silence(optimizer)
        at.reached[optimizer] = step.step
        at.heard[optimizer] = step.received
        lowest = step.records[min(step.records)]
        at.late[optimizer] = step.received - lowest.time
        at.resting[optimizer] = dict(step.resting(resting))
        if resting and any(d > step.step and r not in step.records for r, d in resting.items()):
            return None
        try:
            merged = step_facts.merge(info, optimizer, step.step, step.records)
            tokens = 0.0 if merged.ledger is None else merged.ledger.tokens
            self.engine.see(merged)
        except Exception as error:
            reason = why(step.step, error)
            self.engine.miss(optimizer, step.step, reason)
            return QuarantinedStep(optimizer, step.step, lowest.time, len(step.records), reason)
        at.tokens = int(min(at.tokens + int(tokens), MAX_INT64))
        return merged

    def hear_silence(self, optimizer: int) -> None:
        """Take in what was written down about the time since the last step, if anything was."""
        if not self.silences:
            return
        after = self.at.reached.get(optimizer, 0)
        silence = self.silences.get((optimizer, after))
        if silence is not None and not self.was_silent(optimizer):
            self.at.silent_after[optimizer] = after
            self.engine.hear_nothing(optimizer, after, silence)

    def waited_for(self, step: ArrivedStep, since: float) -> ArrivedStep:
        """A step that may have to wait for ranks, come at the latest when it was first seen."""
        known = self.waits.get(step.optimizer)
        if known is not None and known.step == step.step:
            since = min(since, known.received)
        self.waits[step.optimizer] = waits = replace(step, received=since)
        return waits

    def last_heard(self) -> int | None:
        """The optimizer of which the last step came."""
        return max(self.at.heard, key=lambda o: self.at.heard[o], default=None)

    def was_silent(self, optimizer: int) -> bool:
        """Whether a silence since its last step was taken in."""
        return self.at.silent_after.get(optimizer) == self.at.reached.get(optimizer, 0)

    def caught_up(self) -> bool:
        """Whether everything that was once judged has been judged again after a rewind."""
        return all(self.at.reached.get(o, 0) >= step for o, step in self.catching_up_to.items())

    # ------------------------------------------------------------ snapshots

    def snapshot(self) -> bytes:
        """All that another process needs to go on from here."""
        return encode(Snapshot(FORMAT, version(), self.at, self.engine.state()))

    def restore(self, snapshot: bytes) -> None:
        """Go on from what ``snapshot`` gave.

        Raises ``SnapshotError`` where that is impossible; this fold is of no use then.
        """
        saved = decode(snapshot, version())
        try:
            self.engine.restore(saved.engine)
        except Exception as error:  # whatever is wrong in it, records can be evaluated again
            raise SnapshotError(f"the snapshot is not valid: {error}") from error
        self.at = saved.position
        self.kept_at = self.at.steps

    def carry(self, evaluation: EvaluationResult, at: Position) -> None:
        """Go on after steps whose records are gone, with what an earlier evaluation found there."""
        self.at = at
        self.kept_at = at.steps
        self.engine.carry(evaluation, at.reached)
