"""What the loop did in one window, call by call, in the order in which it did it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

from gradledger_web import formatting

if TYPE_CHECKING:
    from gradledger_monitor.ingest.schema import Event, MicroBatch, StepRecord

MOST_ALONE = 16  # backwards beyond which equal neighbours are drawn as one

CALLS = {
    "clip_norm": "clip_grad_norm_",
    "clip_value": "clip_grad_value_",
    "unscale": "scaler.unscale_",
    "scaler_step": "scaler.step",
    "update": "scaler.update",
    "schedule": "scheduler.step",
    "new_scaler": "new GradScaler",
}


@dataclass(frozen=True)
class Call:
    """One call, and what is known of it; ``kind`` is how it is drawn."""

    kind: str  # backward, scaler, clip, schedule, step
    name: str
    details: tuple[str, ...] = ()
    times: int = 1


def calls_of(record: StepRecord) -> list[Call]:
    """The calls of a rank's window; equal neighbours are one where there are many."""
    calls = list(_calls(record))
    if len(record.micro_batches) <= MOST_ALONE:
        return calls
    return [_together(list(group)) for _, group in groupby(calls, key=_alike)]


def _calls(record: StepRecord) -> Iterator[Call]:
    batches = record.micro_batches
    for done in range(len(batches) + 1):
        if done:
            yield _backward(done, batches[done - 1])
        yield from (_call(event) for event in record.events if event.after == done)
    yield _step(record)


def _backward(number: int, batch: MicroBatch) -> Call:
    synced = f"{batch.collectives} collectives" if batch.collectives else ""
    scaled = f"scale {formatting.count(float(batch.scale))}" if batch.scale is not None else ""
    began = "zeroed before" if batch.fresh and number > 1 else ""
    kept = f"{batch.wrapper}" if batch.wrapper else ""
    details = tuple(text for text in (synced, kept, scaled, began) if text)
    return Call("backward", f"backward {number}", details)


def _call(event: Event) -> Call:
    details = []
    if event.limit is not None:
        details.append(f"limit {formatting.figure(float(event.limit))}")
    if event.norm is not None:
        details.append(f"norm {formatting.figure(float(event.norm))}")
    if not event.own:
        details.append("of another optimizer")
    kind = {"clip_norm": "clip", "clip_value": "clip", "schedule": "schedule"}
    return Call(kind.get(event.op, "scaler"), CALLS[event.op], tuple(details))


def _step(record: StepRecord) -> Call:
    if record.skipped:
        return Call("skip", "step skipped", ("a gradient was not finite",))
    norm = f"norm {formatting.figure(float(record.norm))}" if record.norm is not None else ""
    after = f"{record.collectives_after} collectives before" if record.collectives_after else ""
    return Call("step", "optimizer.step", tuple(text for text in (norm, after) if text))


def _alike(call: Call) -> tuple[str, str, tuple[str, ...]]:
    return call.kind, call.name if call.kind != "backward" else "", call.details


def _together(calls: list[Call]) -> Call:
    first, last = calls[0], calls[-1]
    if len(calls) == 1 or first.kind != "backward":
        return Call(first.kind, first.name, first.details, len(calls))
    numbers = f"{first.name.split()[-1]}–{last.name.split()[-1]}"  # noqa: RUF001
    return Call("backward", f"backward {numbers}", first.details, len(calls))
