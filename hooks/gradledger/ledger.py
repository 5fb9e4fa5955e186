"""The account of one window while it is open: raw evidence, turned into a record afterwards.

The training thread only fills these; ``resolve`` runs on the background thread, because it
reads values that may still be on their way from a device.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from gradledger.deferred import Deferred
from gradledger.records import Clip, MicroBatch, Reduction, StepRecord, Term

# Relative deviation between coordinates up to which a change of the gradient is one factor.
UNIFORM = 1e-3
UNIFORM_HALF = 2e-2


@dataclass
class OpenTerm:
    """A loss node found in the graph; ``upstream`` arrives when backward reaches the node."""

    kind: str
    reduction: Reduction
    tokens: Deferred | int | None = None
    size: int | None = None
    rows: int | None = None
    positions: int | None = None
    class_weight: Deferred | None = None
    undivided: bool | None = None
    coefficient: float | None = None
    upstream: Deferred | None = None  # scalar, or [tokens, total, least, most] of a vector
    missing: dict[str, str] = field(default_factory=dict)

    def resolve(self) -> Term:
        """The term with its numbers read."""
        term = Term(self.kind, self.reduction, size=self.size, rows=self.rows)
        term.positions, term.undivided = self.positions, self.undivided
        term.coefficient = self.coefficient
        term.missing = self.missing
        if isinstance(self.tokens, int):
            term.tokens = self.tokens
        elif self.tokens is not None:
            term.tokens = round(self.tokens.value())
        if self.class_weight is not None:
            term.class_weight = self.class_weight.value()
        if self.upstream is None:
            term.missing.setdefault("weight", "backward did not reach this loss node")
        elif self.reduction == "none":
            _vector_weight(term, self.upstream.values())
        else:
            _scalar_weight(term, self.upstream.value())
        return term

    def deferred(self) -> Iterator[Deferred]:
        """What is still to be read."""
        for item in (self.tokens, self.class_weight, self.upstream):
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


@dataclass
class OpenMicroBatch:
    """One outermost backward while it runs, and after."""

    number: int  # 1, 2, ... over the life of the process
    started: float = field(default_factory=time.perf_counter)
    loss: Deferred | None = None
    scale: Deferred | None = None
    terms: list[OpenTerm] = field(default_factory=list)
    collectives: int | None = None
    backward_ms: float | None = None
    half_precision: bool = False
    missing: dict[str, str] = field(default_factory=dict)
    undo: list[Callable[[], None]] = field(default_factory=list)  # run when backward has ended

    def resolve(self) -> MicroBatch:
        """The micro-batch with its numbers read."""
        return MicroBatch(
            loss=None if self.loss is None else self.loss.value(),
            scale=None if self.scale is None else self.scale.value(),
            terms=[term.resolve() for term in self.terms],
            collectives=self.collectives,
            backward_ms=self.backward_ms,
            missing=self.missing,
        )

    def deferred(self) -> Iterator[Deferred]:
        """What is still to be read."""
        for item in (self.loss, self.scale):
            if item is not None:
                yield item
        for term in self.terms:
            yield from term.deferred()


@dataclass
class Counted:
    """A micro-batch as one optimizer's window counts it.

    ``before`` samples its gradients at the start of backward, where something changed them since
    the last one; ``fresh`` is known at once where they were absent or untouched.
    """

    micro_batch: OpenMicroBatch
    fresh: bool | None = None
    before: Deferred | None = None

    def resolve(self) -> MicroBatch:
        """The micro-batch, with what this optimizer's gradients were when it began."""
        record = self.micro_batch.resolve()
        record.fresh = self.fresh
        if self.before is not None:
            record.fresh = not any(self.before.values())
        return record

    def deferred(self) -> Iterator[Deferred]:
        """What is still to be read."""
        yield from self.micro_batch.deferred()
        if self.before is not None:
            yield self.before


@dataclass
class OpenClip:
    """One clipping by norm; ``whole`` when it covered every parameter of the optimizer."""

    max_norm: float
    norm: Deferred
    after: int
    whole: bool

    def resolve(self) -> Clip:
        """The clip with its norm read."""
        return Clip(self.max_norm, self.norm.value(), self.after)


@dataclass
class OpenStep:
    """One window of one optimizer, closed by its step."""

    optimizer: int
    step: int
    time: float
    micro_batches: list[Counted]
    norm: Deferred | None = None
    clips: list[OpenClip] = field(default_factory=list)
    sample_after_backward: Deferred | None = None
    sample_at_step: Deferred | None = None
    grad_scale: Deferred | None = None
    lr: Any = None
    sync: Any = "none"
    skipped: bool = False
    missing: dict[str, str] = field(default_factory=dict)

    def deferred(self) -> Iterator[Deferred]:
        """What is still to be read."""
        for counted in self.micro_batches:
            yield from counted.deferred()
        for item in (self.norm, self.sample_after_backward, self.sample_at_step, self.grad_scale):
            if item is not None:
                yield item
        for clip in self.clips:
            yield clip.norm

    def resolve(self) -> StepRecord:
        """The record of this step; reads every number."""
        half = any(c.micro_batch.half_precision for c in self.micro_batches)
        record = StepRecord(
            self.optimizer,
            self.step,
            self.time,
            micro_batches=[counted.resolve() for counted in self.micro_batches],
            norm=self._applied_norm(),
            clips=[clip.resolve() for clip in self.clips],
            grad_scale=None if self.grad_scale is None else self.grad_scale.value(),
            lr=None if self.lr is None else float(self.lr),
            sync=self.sync,
            skipped=self.skipped,
            half_precision=half,
            missing=self.missing,
        )
        self._measure_post_factor(record, UNIFORM_HALF if half else UNIFORM)
        return record

    def _applied_norm(self) -> float | None:
        """The measured norm; or what the last clip saw, times what it left of it."""
        if self.norm is not None:
            return self.norm.value()
        if not self.clips:
            return None
        last = self.clips[-1].resolve()
        return None if last.norm is None else last.norm * clip_coefficient(last)

    def _measure_post_factor(self, record: StepRecord, tolerance: float) -> None:
        before, after = self.sample_after_backward, self.sample_at_step
        if before is None or after is None:
            reason = "the gradient sample was not taken after backward and at the step"
            record.missing.setdefault("post_factor", reason)
            return
        factor = common_factor(before.values(), after.values(), tolerance)
        if isinstance(factor, str):
            record.missing.setdefault("post_factor", factor)
        else:
            record.post_factor = factor


def clip_coefficient(clip: Clip) -> float:
    """What ``clip_grad_norm_`` multiplies by: min(1, max_norm / (norm + 1e-6))."""
    assert clip.norm is not None
    return min(1.0, clip.max_norm / (clip.norm + 1e-6))


def common_factor(before: list[float], after: list[float], tolerance: float) -> float | str:
    """The one number that turns ``before`` into ``after``, or why there is none."""
    if len(before) != len(after):
        return "the set of gradients changed between backward and the step"
    ratios = sorted(b / a for a, b in zip(before, after, strict=True) if a != 0)
    if not ratios:
        return "all sampled gradients are zero"
    middle = ratios[len(ratios) // 2]
    if not all(abs(r - middle) <= tolerance * abs(middle) for r in ratios):
        return "the gradients were changed after backward, not scaled by one number"
    return middle
