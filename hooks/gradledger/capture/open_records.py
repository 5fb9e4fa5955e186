"""The account of one window while it is open: raw evidence, turned into a record afterwards.

The training thread only fills these; ``resolve`` runs on the background thread, because it
reads values that may still be on their way from a device.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from gradledger import guard
from gradledger.capture import gradient_probe
from gradledger.capture.async_copy import Deferred
from gradledger.records import Event, MicroBatch, Op, Reduction, Samples, Scaler, StepRecord, Term

HALF = (torch.float16, torch.bfloat16)


@dataclass(slots=True)
class OpenTerm:
    """A loss node found in the graph; ``upstream`` arrives when backward reaches the node."""

    kind: str
    reduction: Reduction
    tokens: Deferred | int | None = None
    size: int | None = None
    rows: int | None = None
    samples: int | None = None
    positions: int | None = None
    class_weight: Deferred | None = None
    undivided: bool | None = None
    coefficient: float | None = None
    head: int | None = None
    upstream: Deferred | None = None  # scalar, or [tokens, total, least, most] of a vector
    target: Any = None  # what the loss compares with, only until backward begins
    missing: dict[str, str] = field(default_factory=dict)

    def resolve(self) -> Term:
        """The term with its numbers read."""
        term = Term(self.kind, self.reduction, size=self.size, rows=self.rows)
        term.samples, term.positions = self.samples, self.positions
        term.undivided = self.undivided
        term.coefficient, term.head = self.coefficient, self.head
        term.missing = dict(self.missing)
        if isinstance(self.tokens, int):
            term.tokens = self.tokens
        elif self.tokens is not None:
            term.tokens = round(self.tokens.value())
        if self.class_weight is not None:
            term.class_weight = self.class_weight.value()
        if self.upstream is None or self.upstream.unread:
            term.missing.setdefault("weight", "backward did not reach this loss node")
        elif self.reduction == "none":
            _vector_weight(term, self.upstream.values())
        else:
            _scalar_weight(term, self.upstream.value())
        return term

    def deferred(self) -> Iterator[Deferred]:
        """What is still to be read."""
        yield from _present(self.tokens, self.class_weight, self.upstream)


def _present(*items: object) -> Iterator[Deferred]:
    for item in items:
        if isinstance(item, Deferred):
            yield item


def _scalar_weight(term: Term, upstream: float) -> None:
    if term.reduction == "sum":
        term.weight = upstream
    elif term.tokens:
        term.weight = upstream / term.tokens


def _vector_weight(term: Term, summary: list[float]) -> None:
    tokens, total, least, most = summary
    term.tokens = round(tokens) if tokens == tokens else None
    if term.tokens:
        term.weight, term.weight_min, term.weight_max = total / term.tokens, least, most


@dataclass(slots=True)
class OpenMicroBatch:
    """One outermost backward while it runs, and after."""

    number: int  # 1, 2, ... over the life of the process
    thread: int = 0  # that called backward
    alone: bool = True  # no backward of another thread ran meanwhile
    looked_at: list[Any] = field(default_factory=list)  # tracks, when it began
    started: float = 0.0  # on the clock of ``time.perf_counter``
    loss: Deferred | None = None
    scale: Deferred | None = None
    terms: list[OpenTerm] = field(default_factory=list)
    collectives: int | None = None
    collectives_before: int | None = None  # that all process groups had run when it began
    backward_ms: float | None = None
    wrapper: Any = None
    lent: bool = False  # backward was given gradients, which are the script's to write over
    targets: Deferred | None = None  # some of what the loss compares with
    stepped_by: frozenset[int] = frozenset()  # optimizers whose window held it
    unseen: frozenset[int] = frozenset()  # parameters whose gradients went elsewhere
    missing: dict[str, str] = field(default_factory=dict)
    undo: list[Callable[[], None]] = field(default_factory=list)  # run when backward has ended

    def resolve(self) -> MicroBatch:
        """The micro-batch with its numbers read."""
        targets = None if self.targets is None else self.targets.values()
        return MicroBatch(
            number=self.number,
            loss=_value(self.loss),
            scale=_value(self.scale),
            terms=[term.resolve() for term in self.terms],
            collectives=self.collectives,
            backward_ms=self.backward_ms,
            wrapper=self.wrapper,
            fingerprint=None if targets is None else gradient_probe.fingerprint(targets),
            constant_target=None if targets is None else gradient_probe.says_nothing(targets),
            missing=self.missing,
        )

    def is_half(self) -> bool:
        """Half precision anywhere between root and loss rounds the weights."""
        seen = [self.loss, *(term.upstream for term in self.terms)]
        return any(item is not None and item.dtype in HALF for item in seen)

    def deferred(self) -> Iterator[Deferred]:
        """What is still to be read."""
        yield from _present(self.loss, self.scale, self.targets)
        for term in self.terms:
            yield from term.deferred()


def _value(item: Deferred | None) -> float | None:
    return None if item is None else item.value()


@dataclass(slots=True)
class Counted:
    """A micro-batch as one optimizer's window counts it.

    ``before`` samples its gradients at the start of backward, where something changed them since
    the last one; ``fresh`` is known at once where they were absent or untouched.
    """

    micro_batch: OpenMicroBatch
    fresh: bool | None = None
    before: Deferred | None = None
    after: Deferred | None = None  # the gradient sample when backward had ended
    claimed: bool = False  # another optimizer had stepped on it before this one did

    def was_fresh(self) -> bool | None:
        """Whether the gradients were absent or zero when the backward began."""
        return self.fresh if self.before is None else not any(self.before.values())

    def resolve(self) -> MicroBatch:
        """The micro-batch, with what this optimizer's gradients were when it began."""
        record = self.micro_batch.resolve()
        record.fresh, record.claimed = self.was_fresh(), self.claimed
        return record

    def deferred(self) -> Iterator[Deferred]:
        """What is still to be read."""
        yield from self.micro_batch.deferred()
        yield from _present(self.before, self.after)


@dataclass
class OpenEvent:
    """One call that the loop made, with the gradient sample at that moment."""

    op: Op
    after: int
    own: bool = True
    limit: float | None = None
    norm: Deferred | None = None
    sample: Deferred | None = None
    whole: bool = False  # a clip that covered every parameter of the optimizer

    def resolve(self, after_backward: Deferred | None, tolerance: float) -> Event:
        """The event; its factor is measured against the sample of the last backward."""
        event = Event(self.op, self.after, self.own, self.limit, _value(self.norm))
        if self.sample is not None and after_backward is not None:
            factor = gradient_probe.common_factor(
                after_backward.values(), self.sample.values(), tolerance
            )
            event.factor = factor if isinstance(factor, float) else None
        return event


@dataclass
class OpenScaler:
    """The GradScaler at the step."""

    ordinal: int
    scale: Deferred | None
    tracker: Deferred | None

    def resolve(self) -> Scaler:
        """The scaler with its numbers read."""
        tracker = _value(self.tracker)
        return Scaler(self.ordinal, _value(self.scale), None if tracker is None else round(tracker))


@dataclass
class OpenStep:
    """One window of one optimizer, closed by its step."""

    optimizer: int
    step: int
    time: float
    micro_batches: list[Counted]
    events: list[OpenEvent] = field(default_factory=list)
    norms: list[tuple[int, Deferred]] = field(default_factory=list)  # parameter group, its norms
    sample_at_step: Deferred | None = None
    sample_at_last_step: Deferred | None = None
    combined: bool = False  # the ranks' gradients may have been combined by hand
    scaler: OpenScaler | None = None
    found_inf: Deferred | None = None
    grad_scale: Deferred | None = None
    values: Deferred | None = None  # sampled parameters before the step
    values_after: Deferred | None = None  # and after it, now and then
    observed: bool = True  # observers may look at it
    facts: tuple[str, ...] = ()  # what is missing if nothing of it can be measured
    fields: dict[str, Any] = field(default_factory=dict)  # of the record, known at once
    missing: dict[str, str] = field(default_factory=dict)

    def hide(self, reason: str) -> None:
        """Nothing of this window can be measured; the record says why."""
        self.observed = False
        self.missing = dict.fromkeys(("micro_batches", *self.facts), reason)
        unknown = OpenMicroBatch(0, missing={"terms": reason, "loss": reason})
        self.micro_batches, self.events = [Counted(unknown)], []
        self.sample_at_last_step = None

    def deferred(self) -> Iterator[Deferred]:
        """What is still to be read."""
        for counted in self.micro_batches:
            yield from counted.deferred()
        for event in self.events:
            yield from _present(event.norm, event.sample)
        for _, norms in self.norms:
            yield norms
        if self.scaler is not None:
            yield from _present(self.scaler.scale, self.scaler.tracker)
        yield from _present(self.sample_at_step, self.found_inf, self.grad_scale)
        yield from _present(self.values, self.values_after)

    def clip_gives_norm(self) -> bool:
        """Whether the loop has just taken the norm of everything, so that we need not."""
        clips = [e for e in self.events if e.op == "clip_norm"]
        return bool(clips) and clips[-1].whole and clips[-1].after == len(self.micro_batches)

    def last_sample(self) -> Deferred | None:
        """The gradient sample when the last backward had ended."""
        return self.micro_batches[-1].after if self.micro_batches else None

    def resolve(self) -> StepRecord:
        """The record of this step; reads every number."""
        with guard.fail_open("a record", self._unreadable):
            return self._resolved()
        return StepRecord(
            self.optimizer,
            self.step,
            self.time,
            micro_batches=[counted.resolve() for counted in self.micro_batches],
            missing=dict(self.missing),
        )

    def _unreadable(self, where: str, error: Exception) -> None:
        guard.report(where, error)
        self.hide(f"the record could not be read: {type(error).__name__}")

    def _resolved(self) -> StepRecord:
        half = any(c.micro_batch.is_half() for c in self.micro_batches)
        tolerance = gradient_probe.UNIFORM_HALF if half else gradient_probe.UNIFORM
        record = StepRecord(self.optimizer, self.step, self.time, **self.fields)
        record.missing = dict(self.missing)
        if not self.observed:
            record.micro_batches = [counted.resolve() for counted in self.micro_batches]
            return record
        record.half_precision = half
        record.micro_batches = [counted.resolve() for counted in self.micro_batches]
        last = self.last_sample()
        record.events = [event.resolve(last, tolerance) for event in self.events]
        record.grad_scale = _value(self.grad_scale)
        record.scaler = None if self.scaler is None else self.scaler.resolve()
        record.skipped = record.skipped or bool(_value(self.found_inf))
        self._measure_factor(record, tolerance)
        self._measure_sample(record)
        self._measure_norms(record)
        self._measure_update(record)
        return record

    # ------------------------------------------------------------------ the gradient sample

    def _measure_factor(self, record: StepRecord, tolerance: float) -> None:
        if "post_factor" in self.missing:
            return  # no sample is then no news about gradients
        before, after = self.last_sample(), self.sample_at_step
        record.empty = after is None or not any(after.values())
        if after is None and before is not None and any(before.values()):
            record.post_factor = 0.0  # there were gradients, and now there are none
            return
        if before is None or after is None:
            reason = "the gradient sample was not taken after backward and at the step"
            record.missing.setdefault("post_factor", reason)
            return
        factor = gradient_probe.common_factor(before.values(), after.values(), tolerance)
        if isinstance(factor, str) and any(c.was_fresh() for c in self.micro_batches[1:]):
            factor = self._moved(record, after, tolerance)
        if isinstance(factor, float):
            record.post_factor = factor
            return
        record.missing.setdefault("post_factor", factor)
        if self.combined:
            apart = max(1, len(before.values()) // gradient_probe.FEW)  # the same on all ranks
            record.samples = Samples(before.values()[::apart], after.values()[::apart])

    def _moved(self, record: StepRecord, after: Deferred, tolerance: float) -> float | str:
        """Gradients cleared between micro-batches may have been kept elsewhere, and put back."""
        ends = [
            counted.after.values()
            for counted, following in zip(
                self.micro_batches, [*self.micro_batches[1:], None], strict=True
            )
            if counted.after is not None and (following is None or following.was_fresh())
        ]
        total = [sum(column) for column in zip(*ends, strict=False)]
        factor = gradient_probe.common_factor(total, after.values(), tolerance)
        if isinstance(factor, float):
            record.moved = True
            for micro_batch in record.micro_batches[1:]:
                micro_batch.fresh = False
        return factor

    def _measure_sample(self, record: StepRecord) -> None:
        if self.sample_at_step is not None:
            values = self.sample_at_step.values()
            record.zero_share = round(values.count(0.0) / len(values), 4)
            if not self.micro_batches and self.sample_at_last_step is not None:
                record.repeat = any(values) and values == self.sample_at_last_step.values()
        ends = [
            gradient_probe.End(
                counted.after.values(),
                bool(counted.was_fresh()),
                counted.micro_batch.wrapper == "sync",
            )
            for counted in self.micro_batches
            if counted.after is not None
        ]
        if len(ends) == len(self.micro_batches):
            record.noise = gradient_probe.noise(ends)

    # ------------------------------------------------------------------ norms and updates

    def _measure_norms(self, record: StepRecord) -> None:
        norms = [(group, norm) for group, item in self.norms for norm in item.values()]
        if norms:
            record.nonfinite = sum(1 for _, norm in norms if norm - norm != 0)
            groups = sorted({group for group, _ in norms})
            if len(groups) > 1:
                record.group_norms = [
                    _root_of_squares(n for g, n in norms if g == group) for group in groups
                ]
            record.norm = _root_of_squares(norm for _, norm in norms)
            return
        clips = [e for e in record.events if e.op == "clip_norm" and e.norm is not None]
        if clips and self.clip_gives_norm():
            record.norm = (
                (clips[-1].norm or 0.0)
                * clip_coefficient(clips[-1])
                * self._since(clips[-1], record)
            )

    @staticmethod
    def _since(clip: Event, record: StepRecord) -> float:
        """What the gradients were multiplied by between the clip and the step."""
        left = (clip.factor or 0.0) * clip_coefficient(clip)
        return 1.0 if not left or record.post_factor is None else record.post_factor / left

    def _measure_update(self, record: StepRecord) -> None:
        if self.values is not None:
            values = self.values.values()
            record.parameters = gradient_probe.fingerprint(values)
            if self.values_after is not None:
                record.update_ratio = gradient_probe.relative_change(
                    values, self.values_after.values()
                )


def _root_of_squares(values: Iterable[float]) -> float:
    return math.sqrt(sum(v * v for v in values))


def clip_coefficient(clip: Event) -> float:
    """What ``clip_grad_norm_`` multiplies by: min(1, max_norm / (norm + 1e-6))."""
    if clip.norm is None or clip.limit is None:
        return 1.0
    return min(1.0, clip.limit / (clip.norm + 1e-6))
