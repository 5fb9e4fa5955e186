"""The timeline of a run: findings, loss scale, skips, batch, evaluations, checkpoints, pauses."""

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
from gradledger_web import formatting

MOST_EVENTS = 150
BATCH_FACTOR, RATE_FACTOR = 1.5, 2.0  # smaller changes of batch and learning rate are no events

Kind = Literal[
    "finding", "scale", "skipped", "batch", "rate", "ranks", "evaluation", "checkpoint", "pause",
    "run",
]  # fmt: skip


@dataclass(frozen=True)
class TimelineEvent:
    """An event at a step; ``time`` in Unix seconds, if it is known."""

    step: int
    time: float | None
    kind: Kind
    text: str


@dataclass(frozen=True)
class Timeline:
    """Events in order, and the number of omitted ones, which are further from the onset."""

    shown: list[TimelineEvent]
    omitted: int


def timeline(
    store: Store,
    run: RunRow,
    evaluation: EvaluationResult,
    saved: Sequence[schema.CheckpointRecord],
    optimizer: int,
    onset: int | None,
) -> Timeline:
    """The events of a run; of many, all findings and the events nearest to the onset."""
    events = [
        *_findings(evaluation.findings),
        *_measured(store, run, optimizer),
        *_evaluations(store, run.id, onset or run.steps),
        *(
            TimelineEvent(c.step, c.time, "checkpoint", f"checkpoint saved {c.path}".strip())
            for c in saved
        ),
    ]
    center = run.steps if onset is None else onset
    events.sort(key=lambda e: (e.kind != "finding", abs(e.step - center)))
    shown = sorted(events[:MOST_EVENTS], key=lambda e: (e.step, e.kind != "finding", e.time or 0.0))
    start = TimelineEvent(0, run.started, "run", "run started")
    return Timeline([start, *shown, *_end(run)], max(len(events) - MOST_EVENTS, 0))


def _end(run: RunRow) -> Iterator[TimelineEvent]:
    if run.ended:
        yield TimelineEvent(run.steps, None, "run", "run ended")


def _findings(findings: Iterable[Finding]) -> Iterator[TimelineEvent]:
    for finding in findings:
        cause = f" (a symptom of {finding.inhibited_by})" if finding.inhibited_by else ""
        text = f"{finding.rule}: {finding.title}{cause}"
        yield TimelineEvent(finding.first_step, None, "finding", text)
        if finding.since_step > finding.first_step:
            yield TimelineEvent(
                finding.since_step, None, "finding", f"{finding.rule} appeared again"
            )
        if finding.lifecycle == "resolved":
            yield TimelineEvent(finding.last_step, None, "finding", f"{finding.rule} last seen")


def _measured(store: Store, run: RunRow, optimizer: int) -> Iterator[TimelineEvent]:
    key = (store, run.id, optimizer)
    for change in event_queries.changes(*key, "scale"):
        yield _change(change, "scale", "loss scale")
    for change in event_queries.jumps(*key, "samples", BATCH_FACTOR):
        yield _change(change, "batch", "effective batch, samples")
    for change in event_queries.changes(*key, "micro_batches"):
        yield _change(change, "batch", "micro-batches per step")
    for change in event_queries.jumps(*key, "lr", RATE_FACTOR):
        yield _change(change, "rate", "learning rate")
    for first, last, time in event_queries.step_ranges(event_queries.incomplete_steps(*key)):
        yield TimelineEvent(
            first, time, "ranks", f"records of some ranks missing for {_span(first, last)}"
        )
    for first, last, time in event_queries.step_ranges(event_queries.skipped_steps(*key)):
        yield TimelineEvent(first, time, "skipped", f"GradScaler skipped {_span(first, last)}")
    yield from _pauses(store, run, optimizer)


def _span(first: int, last: int) -> str:
    return f"steps {first} to {last}" if last > first else f"step {first}"


def _change(change: Change, kind: Kind, name: str) -> TimelineEvent:
    before, now = formatting.figure(change.before), formatting.figure(change.now)
    return TimelineEvent(change.step, change.time, kind, f"{name}: {before} to {now}")


def _pauses(store: Store, run: RunRow, optimizer: int) -> Iterator[TimelineEvent]:
    usual = event_queries.usual_seconds(store, run.id, optimizer)
    for pause in event_queries.pauses(store, run.id, optimizer, usual):
        restarted = _process_restarted(store, run.id, optimizer, pause.step)
        cause = "process restarted" if restarted else "pause"
        seconds = formatting.duration(pause.now - pause.before)
        yield TimelineEvent(
            pause.step, pause.time, "pause", f"{cause}: {seconds} since the previous step"
        )
    for quiet in event_queries.inactive_periods(store, run.id, optimizer):
        text = f"no step for {formatting.duration(quiet.seconds)}"
        yield TimelineEvent(quiet.after, None, "pause", text)


def _process_restarted(store: Store, run: str, optimizer: int, step: int) -> bool:
    """Whether the micro-batch counter of a rank is lower than at the previous step."""
    now = queries.step_records(store, run, optimizer, step)
    before = queries.step_records(store, run, optimizer, step - 1)
    return any(
        now[rank].micro_batches
        and before[rank].micro_batches
        and now[rank].micro_batches[0].number < before[rank].micro_batches[0].number
        for rank in now.keys() & before.keys()
    )


def _evaluations(store: Store, run: str, around: int) -> Iterator[TimelineEvent]:
    metrics: dict[int, list[str]] = {}
    times: dict[int, float] = {}
    for metric in event_queries.eval_metrics_near(store, run, around):
        value = "NaN" if metric.value is None else formatting.figure(metric.value, 5)
        metrics.setdefault(metric.step, []).append(f"{metric.name} {value}")
        times.setdefault(metric.step, metric.time)
    for step, texts in metrics.items():
        yield TimelineEvent(step, times[step], "evaluation", ", ".join(sorted(texts)))
