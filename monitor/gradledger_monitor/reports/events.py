"""What happened in a run, in order of time: findings, scale, skips, batch, evaluations, pauses."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from gradledger_monitor.ingest import schema
from gradledger_monitor.model.findings import EvaluationResult, Finding
from gradledger_monitor.store.database import Store
from gradledger_monitor.store.runs import event_queries, queries
from gradledger_monitor.store.runs.event_queries import Change
from gradledger_monitor.store.runs.queries import RunRow

MOST = 150
BATCH_TIMES, RATE_TIMES = 1.5, 2.0

Kind = Literal[
    "finding", "scale", "skipped", "batch", "rate", "ranks", "evaluation", "checkpoint", "pause",
    "run",
]  # fmt: skip


@dataclass(frozen=True)
class Event:
    """One thing that happened at a step; ``time`` in Unix seconds, where it is known."""

    step: int
    time: float | None
    kind: Kind
    text: str


@dataclass(frozen=True)
class Timeline:
    """Events in order, and how many further away from the onset were left out."""

    shown: list[Event]
    left_out: int


def timeline(
    store: Store,
    run: RunRow,
    evaluation: EvaluationResult,
    saved: Sequence[schema.CheckpointRecord],
    optimizer: int,
    onset: int | None,
) -> Timeline:
    """The events of a run, those nearest to the onset where they are too many."""
    happened = [
        *_findings(evaluation.findings),
        *_measured(store, run, optimizer),
        *_evaluations(store, run.id, onset or run.steps),
        *(Event(c.step, c.time, "checkpoint", f"checkpoint saved {c.path}".strip()) for c in saved),
    ]
    middle = run.steps if onset is None else onset
    happened.sort(key=lambda e: (e.kind != "finding", abs(e.step - middle)))
    shown = sorted(happened[:MOST], key=lambda e: (e.step, e.kind != "finding", e.time or 0.0))
    begun = Event(0, run.started, "run", "the run begins")
    return Timeline([begun, *shown, *_end(run)], max(len(happened) - MOST, 0))


def _end(run: RunRow) -> Iterator[Event]:
    if run.ended:
        yield Event(run.steps, None, "run", "the run ends")


def _findings(found: Iterable[Finding]) -> Iterator[Event]:
    for finding in found:
        cause = f", explained by {finding.inhibited_by}" if finding.inhibited_by else ""
        told = f"{finding.rule}: {finding.title}{cause}"
        yield Event(finding.first_step, None, "finding", told)
        if finding.since_step > finding.first_step:
            yield Event(finding.since_step, None, "finding", f"{finding.rule} is back")
        if finding.lifecycle == "resolved":
            yield Event(finding.last_step, None, "finding", f"{finding.rule} is seen a last time")


def _measured(store: Store, run: RunRow, optimizer: int) -> Iterator[Event]:
    where = (store, run.id, optimizer)
    for change in event_queries.changes(*where, "scale"):
        yield _event(change, "scale", "loss scale")
    for change in event_queries.jumps(*where, "samples", BATCH_TIMES):
        yield _event(change, "batch", "effective batch, samples")
    for change in event_queries.changes(*where, "micro_batches"):
        yield _event(change, "batch", "micro-batches in a step")
    for change in event_queries.jumps(*where, "lr", RATE_TIMES):
        yield _event(change, "rate", "learning rate")
    for first, last, time in event_queries.step_ranges(event_queries.incomplete_steps(*where)):
        several = f"steps {first} to {last}" if last > first else "the step"
        yield Event(first, time, "ranks", f"not every rank was heard of {several}")
    for first, last, time in event_queries.step_ranges(event_queries.skipped_steps(*where)):
        several = f"steps {first} to {last} skipped" if last > first else "step skipped"
        yield Event(first, time, "skipped", f"{several} by the GradScaler")
    yield from _pauses(store, run, optimizer)


def _event(change: Change, kind: Kind, what: str) -> Event:
    return Event(change.step, change.time, kind, f"{what}: {change.before:g} to {change.now:g}")


def _pauses(store: Store, run: RunRow, optimizer: int) -> Iterator[Event]:
    usual = event_queries.usual_seconds(store, run.id, optimizer)
    for pause in event_queries.pauses(store, run.id, optimizer, usual):
        again = _begun_again(store, run.id, optimizer, pause.step)
        what = "the process was started again" if again else "no step ended"
        told = f"{what}: {pause.now - pause.before:.0f} s since the step before"
        yield Event(pause.step, pause.time, "pause", told)
    for quiet in event_queries.inactive_periods(store, run.id, optimizer):
        yield Event(quiet.after, None, "pause", f"no step came for {quiet.seconds:.0f} s")


def _begun_again(store: Store, run: str, optimizer: int, step: int) -> bool:
    """Whether a process began to count its micro-batches anew."""
    now = queries.step_records(store, run, optimizer, step)
    before = queries.step_records(store, run, optimizer, step - 1)
    return any(
        now[rank].micro_batches
        and before[rank].micro_batches
        and now[rank].micro_batches[0].number < before[rank].micro_batches[0].number
        for rank in now.keys() & before.keys()
    )


def _evaluations(store: Store, run: str, around: int) -> Iterator[Event]:
    told: dict[int, list[str]] = {}
    times: dict[int, float] = {}
    for one in event_queries.eval_metrics_near(store, run, around):
        value = "NaN" if one.value is None else f"{one.value:.5g}"
        told.setdefault(one.step, []).append(f"{one.name} {value}")
        times.setdefault(one.step, one.time)
    for step, values in told.items():
        yield Event(step, times[step], "evaluation", ", ".join(sorted(values)))
