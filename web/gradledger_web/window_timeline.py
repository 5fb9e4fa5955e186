"""The calls that the loop made in one window, in their order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

from gradledger_web import formatting

if TYPE_CHECKING:
    from gradledger_monitor.ingest.schema import Event, MicroBatch, StepRecord

MOST_SINGLE = 16  # with more backwards, equal neighbours are merged

CALLS = {
    "clip_norm": "clip_grad_norm_",
    "clip_value": "clip_grad_value_",
    "unscale": "scaler.unscale_",
    "scaler_step": "scaler.step",
    "update": "scaler.update",
    "schedule": "scheduler.step",
    "new_scaler": "new GradScaler",
    "load_state": "optimizer.load_state_dict",
}
_CSS_KINDS = {"clip_norm": "clip", "clip_value": "clip"}
_CSS_KINDS |= {"schedule": "schedule", "load_state": "schedule"}


@dataclass(frozen=True)
class Call:
    """One call with its details. ``kind`` selects the style: backward, scaler, clip, ..."""

    kind: str
    name: str
    details: tuple[str, ...] = ()
    times: int = 1


def calls_of(record: StepRecord) -> list[Call]:
    """The calls of one rank in a window. In a long window, equal neighbours are merged."""
    calls = list(_calls(record))
    if len(record.micro_batches) <= MOST_SINGLE:
        return calls
    return [_merged(list(group)) for _, group in groupby(calls, key=_merge_key)]


def _calls(record: StepRecord) -> Iterator[Call]:
    batches, stepped = record.micro_batches, False
    for done in range(len(batches) + 1):
        if done:
            yield _backward(done, batches[done - 1])
        for event in (event for event in record.events if event.after == done):
            yield _call(event)
            if event.op == "scaler_step" and event.own and not stepped:
                yield _step(record)  # GradScaler.step calls it, or skips it
                stepped = True
    if not stepped:
        yield _step(record)


def _backward(number: int, batch: MicroBatch) -> Call:
    details = (
        formatting.plural(batch.collectives, "collective") if batch.collectives else "",
        batch.wrapper or "",
        f"scale {formatting.figure(float(batch.scale))}" if batch.scale is not None else "",
        "gradients zeroed before" if batch.fresh and number > 1 else "",
    )
    return Call("backward", f"backward {number}", tuple(filter(None, details)))


def _call(event: Event) -> Call:
    details = []
    if event.limit is not None:
        details.append(f"limit {formatting.figure(float(event.limit))}")
    if event.norm is not None:
        details.append(f"norm {formatting.figure(float(event.norm))}")
    if not event.own:
        details.append("of another optimizer")
    return Call(_CSS_KINDS.get(event.op, "scaler"), CALLS[event.op], tuple(details))


def _step(record: StepRecord) -> Call:
    if record.skipped:
        return Call("skipped", "step skipped", ("a gradient was not finite",))
    collectives = record.collectives_after
    details = (
        f"norm {formatting.figure(float(record.norm))}" if record.norm is not None else "",
        f"{formatting.plural(collectives, 'collective')} before" if collectives else "",
    )
    return Call("step", "optimizer.step", tuple(filter(None, details)))


def _merge_key(call: Call) -> tuple[str, str, tuple[str, ...]]:
    return call.kind, call.name if call.kind != "backward" else "", call.details


def _merged(calls: list[Call]) -> Call:
    first, last = calls[0], calls[-1]
    if len(calls) == 1 or first.kind != "backward":
        return Call(first.kind, first.name, first.details, len(calls))
    numbers = f"{first.name.split()[-1]}–{last.name.split()[-1]}"  # noqa: RUF001
    return Call("backward", f"backward {numbers}", first.details, len(calls))
