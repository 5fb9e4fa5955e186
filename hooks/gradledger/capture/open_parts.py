"""Parts of an open window besides its micro-batches, as the training thread observed them.

Calls of the loop, the GradScaler, an earlier optimizer, an update that no optimizer made.
"""

from __future__ import annotations

import math
import sys
import weakref
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from gradledger.capture import gradient_probe
from gradledger.capture.async_copy import Deferred
from gradledger.records import (
    Event,
    LeftOpen,
    MicroBatch,
    Op,
    Replaced,
    Samples,
    Scaler,
    StepRecord,
)

NO_STEP = "the process ended before a step followed the backwards"


def value_of(item: Deferred | None) -> float | None:
    """The value, if it is measured."""
    return None if item is None else item.value()


@dataclass
class OpenShares:
    """Gradients of a whole model after the last backward, and of the optimizer's share of it at the
    step; the parameters at the same coordinates."""

    after_backward: Deferred
    at_step: Deferred
    parameters: Deferred
    own: bool = False  # the former are of this rank alone, before hooks could combine them

    def deferred(self) -> Iterator[Deferred]:
        """The values that are read later."""
        yield from (self.after_backward, self.at_step, self.parameters)

    def resolve(self, record: StepRecord) -> None:
        """Fill the wire record."""
        record.shares = Samples(self.after_backward.values(), self.at_step.values())
        # gradients that the script has discarded in the window are added up, too
        discarded = any(sent.fresh for sent in record.micro_batches[1:])
        record.own_shares = self.own and not discarded
        record.shared_model = gradient_probe.fingerprint(self.parameters.values())


@dataclass
class OpenEvent:
    """One call of the loop inside the window, with the gradient sample at that moment."""

    op: Op
    after: int  # micro-batches of the window that had run
    own: bool = True  # the call was made on this optimizer
    scaler: int = 1  # which GradScaler was called
    limit: float | None = None
    norm: Deferred | None = None
    sample: Deferred | None = None
    covers_all: bool = False  # a clip of every parameter of the optimizer
    metric: float | None = None  # that a scheduler was given
    mode: Literal["min", "max"] | None = None  # of that scheduler

    def resolve(
        self, after_backward: Deferred | None, at_step: Deferred | None, tolerance: float
    ) -> Event:
        """The wire record; its factor is relative to the sample after the last backward."""
        event = Event(self.op, self.after, self.own, self.scaler, self.limit, value_of(self.norm))
        event.metric, event.mode = self.metric, self.mode
        if self.sample is not None and after_backward is not None:
            factor = gradient_probe.common_factor(
                after_backward.values(), self.sample.values(), tolerance
            )
            event.factor = factor if isinstance(factor, float) else None
        if self.op == "clip_value" and self.sample is not None and at_step is not None:
            limit = abs(self.limit or 0.0)
            clipped = [max(-limit, min(limit, value)) for value in self.sample.values()]
            rest = gradient_probe.common_factor(clipped, at_step.values(), tolerance)
            event.rest = rest if isinstance(rest, float) else None
        return event


def besides_clip_by_value(events: list[Event]) -> float | None:
    """The factor on the gradients between the last backward and the step, besides a clip by value.

    None if it is not known, or if there is not one such clip.
    """
    clips = [event for event in events if event.op == "clip_value"]
    if len(clips) != 1 or clips[0].factor is None or clips[0].rest is None:
        return None
    return clips[0].factor * clips[0].rest


def factor_after_clip(clip: Event, post_factor: float | None) -> float:
    """What the gradients were multiplied by between a clip by norm and the step."""
    if post_factor == 0:
        return 0.0  # zeroed
    until_clip = (clip.factor or 0.0) * clip_coefficient(clip)
    if not until_clip or post_factor is None:
        return 1.0
    return post_factor / until_clip


def was_clipped(events: list[OpenEvent], gradients: list[float], tolerance: float) -> bool:
    """Whether the first clip by value was of a multiple of these gradients; it leaves no factor."""
    clip = next((e for e in events if e.op == "clip_value" and e.sample is not None), None)
    if clip is None or clip.sample is None:
        return False
    factor = gradient_probe.common_factor(gradients, clip.sample.values(), tolerance)
    return isinstance(factor, float)


@dataclass
class OpenScaler:
    """The GradScaler at the step."""

    ordinal: int
    scale: Deferred | None
    tracker: Deferred | None
    loaded: bool = False  # its state was loaded from a checkpoint
    unused: bool = False

    def resolve(self) -> Scaler:
        """The wire record."""
        tracker = value_of(self.tracker)
        steps = None if tracker is None else round(tracker)
        return Scaler(self.ordinal, value_of(self.scale), steps, self.loaded, self.unused)


class DroppedOptimizer(NamedTuple):
    """The part of a window that the records need after the script has dropped the optimizer."""

    name: str
    steps: int


class OpenReplaced(NamedTuple):
    """An earlier optimizer of the same parameters."""

    optimizer: int
    steps: int
    scaler: OpenScaler | None
    # of each optimizer in a row that began as the one before: parameters then, and as it left them
    handovers: tuple[tuple[Deferred, Deferred], ...] = ()
    horizon: float | None = None
    lr: float | None = None

    def resolve(self) -> Replaced:
        """The wire record."""
        scaler = None if self.scaler is None else self.scaler.resolve()
        alike = [left.values() == now.values() for left, now in reversed(self.handovers)]
        in_a_row = alike.index(False) if False in alike else len(alike)
        return Replaced(self.optimizer, self.steps, scaler, in_a_row, self.horizon, self.lr)

    def deferred(self) -> Iterator[Deferred]:
        """The values that are read later."""
        for handover in self.handovers:
            yield from handover


GONE = "the loop updates the parameters itself, and its gradients were written to or freed before"


@dataclass
class OpenUpdate:
    """What an update did: samples of the parameters before and after it, and of the gradients."""

    parameters_before: Deferred | None
    parameters_after: Deferred | None
    precision: float  # of the parameters' dtype, relative
    gradient: Deferred | None = None  # as the update found it; None if that is not known
    untouched: bool = False  # the gradients themselves are still there
    decided: bool = True  # False: if the gradient is all zeros, it was ``if_cleared``
    if_cleared: Deferred | None = None

    def decide(self, missing: dict[str, str]) -> Deferred | None:
        """The gradient, now that its values have arrived."""
        if self.gradient is not None and any(self.gradient.values()):
            return self.gradient
        if self.if_cleared is None:
            missing["post_factor"] = GONE
        return self.if_cleared


FEWEST_PLANNED = 8  # steps of a schedule
UNFINISHED = 1.5  # times the steps that it made
DECAYED = 0.2  # of the highest rate: a schedule that came so far is near its end


class OpenUnfinished(NamedTuple):
    """A schedule that the process left unfinished, if there is one."""

    planned: int = 0
    scheduled: int = 0
    trained: int = 0
    resumed: int = 0
    again: bool = False
    warmup: int = 0
    idle: str = ""
    names: Sequence[str] = ()
    stopped: bool = False


def ends_by_exception() -> bool:
    """Whether an exception is known to end the process; in a notebook, a cell may have raised it.

    A worker of ``multiprocessing`` ends inside its exception. ``sys.exit`` after one that was
    caught, and a signal that the script handles, are not known here.
    """
    return hasattr(sys, "last_value") or sys.exc_info()[0] is not None


@dataclass
class Schedule:
    """The LR schedule of an optimizer, and how far it and the training came."""

    planned: frozenset[int]  # the numbers of steps for which it may be planned
    ranks: int = 1  # each of which may make a part of them
    scheduler: weakref.ref[Any] | None = None  # the last that stepped; the next three are of it
    total: int | None = None  # the number after which it has ended
    by_function: bool = False  # read from a function, which may hold other numbers
    fell: bool = False  # the rate has been near its end
    done: int = 0  # steps of it that were observed
    steps: int = 0  # steps of the optimizer that were observed
    micro_batches: int = 0  # in these
    rate: float = 0.0  # at the latest of these
    highest: float = 0.0
    resumed: int = 0  # steps that the optimizer had made, if its state was loaded and this was not
    # steps of the plan and of a warm-up that is as long, as a function of ``LambdaLR`` names them
    warmup: tuple[int, int] | None = None
    rises: bool = True  # the rate never fell
    first: float | None = None  # rate
    rate_begun: float | None = None  # rate at the first step of it

    def is_low(self) -> bool:
        """Whether the rate is near its end, as after a decay."""
        return self.rate <= DECAYED * self.highest

    def unfinished(self, steps: int, largest: int) -> OpenUnfinished | None:
        """At the end of a training of ``steps`` steps: the plan, if it is in another unit.

        It is the number of all micro-batches, or of all steps, of this rank or of all, and the
        schedule made far fewer; or that of the steps before and after a resume. Or the plan came to
        its end in a warm-up.
        ``largest``: micro-batches of the largest window, of which the last may be a part.
        """
        if not self.steps or ends_by_exception():
            return None
        if self.is_low():
            return None
        trained = round(self.micro_batches * steps / self.steps)
        done = round(self.done * steps / self.steps)
        planned, warmup = self.warmup or (0, 0)
        if abs(planned - done) < 2 and planned >= FEWEST_PLANNED and self.rises:
            rose = self.first is not None and self.rate > self.first
            return OpenUnfinished(planned, done, trained, warmup=warmup) if rose else None
        if any(abs(planned - done) < 2 for planned in self.planned):
            return None  # a function may hold several numbers
        for planned in sorted(self.planned):
            if self.resumed and abs(planned - done - self.resumed) < 2 <= self.done:
                return OpenUnfinished(planned, done, trained, self.resumed)
            close = any(
                abs(planned - n * trained) < n * max(largest, 2) or abs(planned - n * steps) < 2 * n
                for n in (1, self.ranks)
            )
            if close and planned >= max(FEWEST_PLANNED, UNFINISHED * done):
                return OpenUnfinished(planned, done, trained)
        return None


def count_applied(micro_batches: Sequence[Any]) -> int:
    """Micro-batches since the gradients were zeroed."""
    fresh = (n for n, each in enumerate(reversed(micro_batches), 1) if each.fresh)
    return next(fresh, len(micro_batches))


def resolve_all(micro_batches: list[Any]) -> list[MicroBatch]:
    """The records of a step; what another optimizer will step on is claimed, if zeroed or shared.

    A backward with further losses of other optimizers is theirs, as that of a discriminator.
    """
    records = [counted.resolve() for counted in micro_batches]
    zeroed, alone = False, not any(record.elsewhere for record in records)
    for counted, record in zip(reversed(micro_batches), reversed(records), strict=True):
        record.claimed |= (counted.shared and alone) or (counted.awaited and zeroed)
        zeroed = zeroed or bool(record.fresh)
    return records


def left_open_record(step: Any) -> StepRecord:
    """The record of an ``OpenStep`` that is none: the process ended, and no step was taken."""
    values = [counted.micro_batch.loss for counted in step.micro_batches]
    losses = [None if value is None else value.value() for value in values]
    norms = [event.norm.value() for event in step.events if event.norm is not None]
    left_open = LeftOpen(
        backwards=len(losses),
        zeroed=sum(bool(counted.was_fresh()) for counted in step.micro_batches[1:]),
        nonfinite=sum(not math.isfinite(loss or 0.0) for loss in losses),
        scaled=sum(counted.micro_batch.scale is not None for counted in step.micro_batches),
        norms=len(norms),
        nonfinite_norms=sum(not math.isfinite(norm or 0.0) for norm in norms),
        inputs=sum(counted.micro_batch.reaches_input for counted in step.micro_batches),
    )
    for name, value in step.left_open._asdict().items():
        setattr(left_open, name, list(value) if isinstance(value, tuple) else value)
    record = StepRecord(step.optimizer, step.step, step.time, left_open=left_open)
    record.skipped, record.code = True, step.code()
    record.models = None if step.models is None else step.models.resolve()
    record.missing = dict.fromkeys(("post_factor", *step.facts), NO_STEP)
    return record


def root_of_squares(values: Iterable[float]) -> float:
    """The norm of several parts, from the norms of each."""
    return math.sqrt(sum(v * v for v in values))


def clip_coefficient(clip: Event) -> float:
    """The factor of ``clip_grad_norm_``: min(1, max_norm / (norm + 1e-6))."""
    if clip.norm is None or clip.limit is None:
        return 1.0
    return min(1.0, clip.limit / (clip.norm + 1e-6))


def four_digits(value: float) -> float:
    """Enough of a number that is a share of a sum."""
    return float(f"{value:.4g}")


FEWEST_SUMMED = 4  # values by which a factor is known


def sum_factor(before: list[float], after: list[float]) -> float:
    """What an all-reduce multiplied its sampled values by; 0 if it combined different ones.

    Not a number if that is not known: too few values show it, or some are not finite.
    """
    if len(before) != len(after) or not all(map(math.isfinite, (*before, *after))):
        return math.nan
    if any((a == 0) != (b == 0) for a, b in zip(before, after, strict=True)):
        return 0.0
    factor = gradient_probe.common_factor(before, after, gradient_probe.UNIFORM_HALF)
    if isinstance(factor, str):
        return 0.0 if any(before) else math.nan
    return factor if sum(map(bool, before)) >= FEWEST_SUMMED else math.nan


class Summed(NamedTuple):
    """Sampled values of an all-reduce inside a backward."""

    before: Deferred
    after: Deferred
    passed: list[Deferred]  # what its autograd function returns, if it has as many values
    divisor: int = 1  # the number of ranks, if the all-reduce divides by it
    both_ways: bool = False  # in a function whose forward combines ranks, too, such as a mean

    def deferred(self) -> tuple[Deferred, ...]:
        """All of them."""
        return (self.before, self.after, *self.passed)


def deferred_of(summed: list[Summed]) -> list[Deferred]:
    """The values that are read later."""
    return [value for each in list(summed) for value in each.deferred()]


def sums_of(summed: list[Summed]) -> dict[str, Any]:
    """The fields ``sums`` and ``sum_scales`` of a micro-batch, from all-reduces in its backward.

    Without those whose values come after the step's copies. The latter states what the sum of each
    is multiplied by until it leaves its autograd function, not a number if that is not known, or
    may be due to its forward. Of values that are equal on all ranks, ``sums`` includes it. Empty if
    none changes a sum.
    """
    sums, scales = [], []
    for each in list(summed):
        if any(value.has_no_copy for value in each.deferred()):
            continue
        after = each.after.values()
        factor, scale = sum_factor(each.before.values(), after), math.nan
        if each.passed:
            scale = sum_factor(after, each.passed[0].values()) or math.nan
        if factor and not math.isnan(scale):
            factor, scale = factor * scale, 1.0
        elif each.both_ways:
            scale = math.nan
        sums.append(factor)
        scales.append(four_digits(scale / each.divisor))
    scaled = any(abs(scale - 1) > 0 for scale in scales)
    return {"sums": sums, "sum_scales": scales if scaled else []}
