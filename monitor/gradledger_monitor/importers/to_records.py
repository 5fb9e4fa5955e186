"""Another tool's log as records of the wire: what it says, and for the rest why it is not known."""

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

_STEP_OF_TRAINING = ("loss", "norm", "lr", "scale")


def records(
    logged: TrainingLog, told: Mapping[str, str], run: str | None = None, name: str | None = None
) -> Iterator[Record]:
    """The run record first. Raises ``UnreadableLog`` where nothing of training is in the log."""
    known = match_names(logged.metrics(), told)
    points = _in_order(logged.points, known)
    if not any(known.known.get(m) in p.values for p in points for m in _STEP_OF_TRAINING):
        has = ", ".join(list(logged.metrics())[:20]) or "nothing"
        raise UnreadableLog(
            f"no loss, gradient norm or learning rate was recognised; it logs {has}. "
            "Say which is which: gradledger import FILE --map loss=NAME --map norm=NAME"
        )
    yield _run(logged, run or identity(logged), name or logged.name, points)
    yield from _told(logged, points, known)


def identity(logged: TrainingLog) -> str:
    """The id of the run here: the same however often it is read."""
    digest = hashlib.sha256(f"{logged.tool}|{logged.identity}".encode()).hexdigest()[:10]
    readable = re.sub(r"[^A-Za-z0-9._-]+", "-", logged.name).strip(".-")[:60]
    return f"{readable or 'run'}-{digest}"


def _run(logged: TrainingLog, run: str, name: str, points: list[Point]) -> RunRecord:
    begun = next((p.time for p in points if p.time), 0.0)
    environment = {IMPORTED_FROM: logged.tool}
    config = dict(logged.config)
    return RunRecord(
        run, name[:256] or run, project=logged.project[:256] or "imported", started=begun,
        optimizers=["optimizer"], config=config, environment=environment,
    )  # fmt: skip


def _told(logged: TrainingLog, points: list[Point], known: MetricNames) -> Iterator[Record]:
    last, time = 0, 0.0
    for point in points:
        step, time = int(point.step), point.time or time
        said = {m: point.values[n] for m, n in known.known.items() if n in point.values}
        evaluated = {n: v for n, v in point.values.items() if n in known.evaluations}
        if any(meaning in said for meaning in _STEP_OF_TRAINING) and step > last:
            yield _step(step, time, said, logged.tool)
            last = step
        if evaluated:
            yield EvalRecord(step, time, evaluated)
    for step, path in sorted(logged.checkpoints.items()):
        yield CheckpointRecord(step, time, path)
    if logged.over:
        yield EndRecord(time, [last])


def _step(step: int, time: float, said: Mapping[str, float], tool: str) -> StepRecord:
    why = f"{tool} does not log it"
    missing = {m: why for m in ("norm", "scale", "post_factor") if m not in said}
    return StepRecord(
        0, step, time, _losses(said, why), norm=said.get("norm"), lr=said.get("lr"),
        missing=missing,
    )  # fmt: skip


def _losses(said: Mapping[str, float], why: str) -> list[MicroBatch]:
    """The loss as that of one backward: of how many it was the mean or the sum, no log tells."""
    loss, scale = said.get("loss"), said.get("scale")
    if loss is None and scale is None:
        return []
    scaled = loss if loss is None or scale is None else loss * scale
    return [MicroBatch(1, scaled, scale, missing={"terms": why})]


def _in_order(points: list[Point], known: MetricNames) -> list[Point]:
    """By optimizer step, from 1, what was logged at one step as one point."""
    counter, clock = known.known.get("step"), known.known.get("time")
    merged: dict[int, Point] = {}
    for point in points:
        step = point.values.get(counter, point.step) if counter else point.step
        time = point.values.get(clock, point.time) if clock else point.time
        if not math.isfinite(step) or step < 0 or step >= 2**53:
            continue
        before = merged.get(int(step))
        values = {**before.values, **point.values} if before else dict(point.values)
        merged[int(step)] = Point(int(step), values, (before.time if before else None) or time)
    shift = 1 if 0 in merged and _trains(merged[0], known) else 0  # some count from 0
    return [Point(s + shift, p.values, p.time) for s, p in sorted(merged.items())]


def _trains(point: Point, known: MetricNames) -> bool:
    return any(known.known.get(meaning) in point.values for meaning in _STEP_OF_TRAINING)
