"""Another tool's log as records: its values, and for all others why they are missing."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterator, Mapping

from gradledger.records import (
    CheckpointRecord,
    EndRecord,
    EvalRecord,
    MicroBatch,
    Record,
    RunRecord,
    StepRecord,
)
from gradledger_monitor.importers.metric_log import Point, TrainingLog, UnreadableLog
from gradledger_monitor.importers.metric_names import MetricNames, match_names
from gradledger_monitor.model.step_facts import IMPORTED_FROM

_TRAINING_METRICS = ("loss", "norm", "lr", "scale")


def records(
    log: TrainingLog, mapping: Mapping[str, str], run: str | None = None, name: str | None = None
) -> Iterator[Record]:
    """The records, the run record first. Raises ``UnreadableLog`` without a training metric."""
    names = match_names(log.metrics(), mapping)
    points = _in_order(log.points, names)
    if not any(_trains(point, names) for point in points):
        logged = ", ".join(list(log.metrics())[:20]) or "nothing"
        raise UnreadableLog(
            f"no loss, gradient norm or learning rate was recognised; the log has {logged}. "
            "Name them: gradledger import FILE --map loss=NAME --map norm=NAME"
        )
    yield _run(log, run or identity(log), name or log.name, points)
    yield from _records(log, points, names)


def identity(log: TrainingLog) -> str:
    """The id of the imported run: the same each time the log is read."""
    digest = hashlib.sha256(f"{log.tool}|{log.identity}".encode()).hexdigest()[:10]
    readable = re.sub(r"[^A-Za-z0-9._-]+", "-", log.name).strip(".-")[:60]
    return f"{readable or 'run'}-{digest}"


def _run(log: TrainingLog, run: str, name: str, points: list[Point]) -> RunRecord:
    started = next((p.time for p in points if p.time), 0.0)
    environment = {IMPORTED_FROM: log.tool}
    config = dict(log.config)
    return RunRecord(
        run, name[:256] or run, project=log.project[:256] or "imported", started=started,
        optimizers=["optimizer"], config=config, environment=environment,
    )  # fmt: skip


def _records(log: TrainingLog, points: list[Point], names: MetricNames) -> Iterator[Record]:
    last, time = 0, 0.0
    for point in points:
        step, time = int(point.step), point.time or time
        values = {m: point.values[n] for m, n in names.by_meaning.items() if n in point.values}
        evaluated = {n: v for n, v in point.values.items() if n in names.evaluations}
        if any(meaning in values for meaning in _TRAINING_METRICS) and step > last:
            yield _step(step, time, values, log.tool)
            last = step
        if evaluated:
            yield EvalRecord(step, time, evaluated)
    for step, path in sorted(log.checkpoints.items()):
        yield CheckpointRecord(step, time, path)
    if log.ended:
        yield EndRecord(time, [last])


def _step(step: int, time: float, values: Mapping[str, float], tool: str) -> StepRecord:
    reason = f"{tool} does not log it"
    missing = {m: reason for m in ("norm", "scale", "post_factor") if m not in values}
    return StepRecord(
        0, step, time, _losses(values, reason), norm=values.get("norm"), lr=values.get("lr"),
        missing=missing,
    )  # fmt: skip


def _losses(values: Mapping[str, float], reason: str) -> list[MicroBatch]:
    """The loss as that of one backward: logs do not show of how many it is the mean or sum."""
    loss, scale = values.get("loss"), values.get("scale")
    if loss is None and scale is None:
        return []
    scaled = loss if loss is None or scale is None else loss * scale
    return [MicroBatch(1, scaled, scale, missing={"terms": reason})]


def _in_order(points: list[Point], names: MetricNames) -> list[Point]:
    """One point per optimizer step, ascending from 1, with everything logged at that step."""
    counter, clock = names.by_meaning.get("step"), names.by_meaning.get("time")
    merged: dict[int, Point] = {}
    for point in points:
        step = point.values.get(counter, point.step) if counter else point.step
        time = point.values.get(clock, point.time) if clock else point.time
        if not math.isfinite(step) or step < 0 or step >= 2**53:
            continue
        before = merged.get(int(step))
        values = {**before.values, **point.values} if before else dict(point.values)
        merged[int(step)] = Point(int(step), values, (before.time if before else None) or time)
    shift = 1 if 0 in merged and _trains(merged[0], names) else 0  # some logs count from 0
    return [Point(s + shift, p.values, p.time) for s, p in sorted(merged.items())]


def _trains(point: Point, names: MetricNames) -> bool:
    return any(names.by_meaning.get(meaning) in point.values for meaning in _TRAINING_METRICS)
