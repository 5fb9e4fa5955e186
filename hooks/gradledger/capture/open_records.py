"""The records of a window while it is open: raw evidence, resolved into a wire record later.

The training thread only fills these. ``resolve`` runs on the background thread: it reads values
that may still be in transit from a device. ``deferred`` yields those.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from gradledger import guard
from gradledger.capture import gradient_probe
from gradledger.capture.async_copy import Deferred
from gradledger.capture.gradient_probe import AccumulatedSample
from gradledger.capture.layers.open_layers import OpenLayers
from gradledger.capture.layers.unheld import OpenUnheld
from gradledger.capture.open_parts import (
    OpenEvent,
    OpenReplaced,
    OpenScaler,
    OpenShares,
    OpenUpdate,
    Summed,
    besides_clip_by_value,
    clip_coefficient,
    deferred_of,
    factor_after_clip,
    four_digits,
    left_open_record,
    resolve_all,
    root_of_squares,
    sums_of,
    value_of,
    was_clipped,
)
from gradledger.capture.open_terms import HALF, OpenTerm, Reach, add_evidence, keep_own, present
from gradledger.capture.replica_sample import OpenModels, OpenReplica
from gradledger.records import CodeLocation, MicroBatch, StepRecord

OWN_BUFFERS = (
    "the loop updates the parameters itself, and clears the gradients between its backwards: which "
    "of them the update uses is not known"
)
UNSAMPLED = "the gradient sample was not taken after backward and at the step"
IN_STEP = "the optimizer communicates with other ranks in its step, out of sight"
ASSIGNED = (
    "the loop assigns the gradients that the optimizer steps on, and they are no multiple of those "
    "that were computed in this window"
)


@dataclass(slots=True)
class OpenMicroBatch:
    """One outermost backward, from its begin until its step is resolved."""

    number: int  # 1, 2, ... over the life of the process
    thread: int = 0  # the one that called backward
    alone: bool = True  # no backward of another thread ran meanwhile
    complete: bool = True  # has ended; a step from a hook inside it waits for the facts of its end
    marked_windows: list[Any] = field(default_factory=list)  # whose marks were read at its begin
    started: float = 0.0  # on the clock of ``time.perf_counter``
    loss: Deferred | None = None
    scale: Deferred | None = None
    scaler: int = 1  # which GradScaler that is
    scaling: frozenset[int] = frozenset()  # nodes (their numbers) that multiply by it
    terms: list[OpenTerm] = field(default_factory=list)
    task: int | None = None  # of the first of several losses
    reach: Reach | None = None  # if it may be another one for each of the terms
    collectives: int | None = None
    collectives_before: int | None = None  # run by all process groups when it began
    collectives_between: int = 0  # run since the last backward, if no wrapper is in use
    sums: list[Summed] = field(default_factory=list)  # of its all-reduces
    exchanges: bool = False  # an all-to-all has run in it
    backward_ms: float | None = None
    wrapper: Any = None
    has_grad_tensors: bool = False  # the caller passed gradients, and may write over them
    relayed: bool = False  # they are all that it started from: no loss
    reaches_input: bool = False
    input_leaves: tuple[Any, ...] = ()  # weak references to these inputs
    targets: Deferred | None = None  # some of the loss's targets
    stepped_by: dict[int, bool] = field(default_factory=dict)  # optimizers: did they hold it alone
    hidden_parameters: frozenset[int] = frozenset()  # ids; FSDP holds gradients outside ``.grad``
    reductions: frozenset[Any] = frozenset()  # by FSDP2, over ranks: see ``observers.ranks.fsdp2``
    missing: dict[str, str] = field(default_factory=dict)
    undo: list[Callable[[], None]] = field(default_factory=list)  # run when backward has ended

    def resolve(self) -> MicroBatch:
        """The wire record, as far as it is the same for every optimizer."""
        targets = None if self.targets is None else self.targets.values()
        return MicroBatch(
            number=self.number,
            loss=value_of(self.loss),
            scale=value_of(self.scale),
            scaler=self.scaler,
            terms=[term.resolve() for term in self.terms],
            task=self.task,
            collectives=self.collectives,
            **sums_of(self.sums),
            backward_ms=self.backward_ms,
            wrapper=self.wrapper,
            relayed=self.relayed,
            reaches_input=self.reaches_input,
            fingerprint=None if targets is None else gradient_probe.fingerprint_of_labels(targets),
            constant_target=None if targets is None else gradient_probe.is_uninformative(targets),
            consecutive_target=bool(targets) and gradient_probe.are_consecutive(targets or []),
            without_gradient=self._without_gradient(),
            missing=dict(self.missing),  # optimizers that share it each add their own
        )

    def _without_gradient(self) -> float | None:
        """The part of the loss that has no gradient, with the loss scale, if it was measured."""
        shares = [term.share_of_root() for term in self.terms]
        measured = [share for share in shares if share is not None]
        rounded = self.has_grad_tensors or self.is_half()  # or multiplied
        if self.loss is None or not shares or len(measured) < len(shares) or rounded:
            return None
        return self.loss.value() - sum(measured)

    def is_half(self) -> bool:
        """Whether half precision between root and loss rounds the weights."""
        values = [self.loss, *(t.upstream or t.element_upstream for t in self.terms)]
        return any(value is not None and value.dtype in HALF for value in values)

    def deferred(self) -> Iterator[Deferred]:
        """The values that are read later."""
        yield from present(self.loss, self.scale, self.targets, *deferred_of(self.sums))
        for term in self.terms:
            yield from term.deferred()


@dataclass(slots=True)
class CountedMicroBatch:
    """A micro-batch in the window of one optimizer. Optimizers that share a backward each count it.

    ``fresh``: the gradients were absent or zero when it began; if None, ``sample_before`` decides.
    """

    micro_batch: OpenMicroBatch
    fresh: bool | None = None
    sample_before: Deferred | None = None
    window: int = 0  # the id of the window
    sample_after: Deferred | None = None  # when the backward had ended
    sample_own: Deferred | None = None  # of this rank alone, if hooks may have combined them then
    half: bool = False  # the sample is of gradients in half precision
    norms: Deferred | None = None  # of the gradients then, if no optimizer holds the parameters
    returned: bool = False  # by ``torch.autograd.grad``, and not added to ``.grad``
    already_stepped: bool = False  # another optimizer stepped on it before this one did
    awaited: bool = False  # another optimizer will step on it
    shared: bool = False  # and it has stepped on no other one of the window, of which others have
    changed: bool = False  # most parameters, since the backward before it in the window
    call: int | None = None  # see ``CalledFrom.locate_backward``

    def was_fresh(self) -> bool | None:
        """Whether the gradients were absent or zero when the backward began."""
        return self.fresh if self.sample_before is None else not any(self.sample_before.values())

    def resolve(self) -> MicroBatch:
        """The wire record, with the state of this optimizer's gradients when it began."""
        record = self.micro_batch.resolve()
        record.fresh, record.claimed = self.was_fresh(), self.already_stepped
        record.parameters_changed, record.call = self.changed, self.call
        return keep_own(record, self.micro_batch.terms, self.micro_batch.reach, self.window)

    def deferred(self) -> Iterator[Deferred]:
        """The values that are read later."""
        yield from self.micro_batch.deferred()
        yield from present(self.sample_before, self.sample_after, self.sample_own, self.norms)


@dataclass
class OpenStep:
    """One window of one optimizer, closed by its step."""

    optimizer: int
    step: int
    time: float
    micro_batches: list[CountedMicroBatch]
    events: list[OpenEvent] = field(default_factory=list)
    norms: list[tuple[int, Deferred]] = field(default_factory=list)  # parameter group, its norms
    filled: Deferred | None = None  # the last sample after backward, with zeros for absent ones
    sample_at_step: Deferred | None = None
    sample_at_last_step: Deferred | None = None
    sample_before_step: Deferred | None = None  # where gradients may be combined in the step
    ran_in_step: bool = False  # the step began collectives, and did not only wait for earlier ones
    may_be_combined: bool = False  # the loop may have combined the gradients of the ranks
    hooked: str = ""  # why each gradient may have been changed before it was sampled
    sample_after_own_step: Deferred | None = None  # where the step itself is the reason
    scaler: OpenScaler | None = None
    replaced: OpenReplaced | None = None
    found_inf: Deferred | None = None
    grad_scale: Deferred | None = None
    parameters_before: Deferred | None = None  # a sample before the step, on some steps
    parameters_after: Deferred | None = None  # and after it
    models: OpenModels | None = None
    replica: OpenReplica | None = None
    layers: OpenLayers | None = None  # at a few steps
    unheld: OpenUnheld | None = None  # at some of them
    shares: OpenShares | None = None  # where the ranks may share out the parameters
    untrained: Deferred | None = None  # gradients of parameters that had none up to now
    adopted: bool = False  # backward added to other gradients, from which the loop made these
    update: OpenUpdate | None = None  # if no optimizer made it
    left_open: Any = None  # an OpenUnfinished: the process ended, and no step was taken
    observed: bool = True  # False: its thread or its tensors cannot be observed
    facts: tuple[str, ...] = ()  # missing if nothing can be measured
    fields: dict[str, Any] = field(default_factory=dict)  # of the record, final already
    code: Callable[[], list[CodeLocation]] = list  # reads those seen since the last record
    missing: dict[str, str] = field(default_factory=dict)

    def mark_unmeasured(self, reason: str) -> None:
        """Drop what the window holds; the record states the reason."""
        self.observed = False
        self.missing = dict.fromkeys(("micro_batches", *self.facts), reason)
        unmeasured = OpenMicroBatch(0, missing={"terms": reason, "loss": reason})
        self.micro_batches, self.events = [CountedMicroBatch(unmeasured)], []
        self.sample_at_last_step = None

    @property
    def ready(self) -> bool:
        """Whether every value has arrived, and the backward that the step was in has ended."""
        complete = all(counted.micro_batch.complete for counted in self.micro_batches)
        return complete and all(value.ready for value in self.deferred())

    def deferred(self) -> Iterator[Deferred]:
        """The values that are read later."""
        for counted in self.micro_batches:
            yield from counted.deferred()
        for event in self.events:
            yield from present(event.norm, event.sample)
        yield from (norms for _, norms in self.norms)
        yield from () if self.scaler is None else present(self.scaler.scale, self.scaler.tracker)
        yield from present(self.sample_at_step, self.sample_before_step, self.sample_at_last_step)
        yield from present(self.sample_after_own_step, self.found_inf, self.grad_scale)
        yield from present(self.untrained, self.parameters_before, self.parameters_after)
        yield from () if self.replaced is None else self.replaced.deferred()
        yield from () if self.models is None else self.models.deferred()
        yield from () if self.replica is None else [self.replica.sample]
        yield from () if self.layers is None else self.layers.deferred()
        yield from () if self.unheld is None else self.unheld.deferred()
        yield from () if self.shares is None else self.shares.deferred()

    def clip_gives_norm(self) -> bool:
        """Whether the loop took the norm of all gradients after the last backward, by clipping."""
        clips = [event for event in self.events if event.op in ("clip_norm", "clip_value")]
        if not clips or clips[-1].op == "clip_value" or not clips[-1].covers_all:
            return False
        return clips[-1].after == len(self.micro_batches)

    def last_sample(self) -> Deferred | None:
        """The gradient sample when the last backward had ended, in the form of that at the step."""
        return self.filled or (self.micro_batches[-1].sample_after if self.micro_batches else None)

    def resolve(self) -> StepRecord:
        """The wire record; if a value cannot be read, one that states so."""
        with guard.fail_open("a record", self._mark_unreadable):
            return left_open_record(self) if self.left_open else self._resolve_measured()
        return StepRecord(
            self.optimizer,
            self.step,
            self.time,
            micro_batches=resolve_all(self.micro_batches),
            missing=dict(self.missing),
        )

    def _mark_unreadable(self, where: str, error: Exception) -> None:
        guard.report(where, error)
        self.mark_unmeasured(f"the record could not be read: {type(error).__name__}")

    def _resolve_measured(self) -> StepRecord:
        half = any(c.half or c.micro_batch.is_half() for c in self.micro_batches)
        tolerance = gradient_probe.UNIFORM_HALF if half else gradient_probe.UNIFORM
        record = StepRecord(self.optimizer, self.step, self.time, **self.fields)
        record.missing = dict(self.missing)
        record.code = self.code()
        add_evidence(t.inferred for c in self.micro_batches for t in c.micro_batch.terms)
        record.micro_batches = resolve_all(self.micro_batches)
        if not self.observed:
            return record
        if self.update is not None and not self.update.decided:
            self.sample_at_step = self.update.decide(record.missing)
        record.half_precision = half
        last, at_step = self.last_sample(), self.sample_at_step
        record.events = [event.resolve(last, at_step, tolerance) for event in self.events]
        record.grad_scale = value_of(self.grad_scale)
        record.scaler = None if self.scaler is None else self.scaler.resolve()
        record.replaced = None if self.replaced is None else self.replaced.resolve()
        record.skipped = record.skipped or bool(value_of(self.found_inf))
        self._measure_between(record, tolerance)
        self._note_combined_in_step(record)
        self._measure_factor(record, tolerance)
        self._measure_sample(record, tolerance)
        self._measure_norms(record)
        self._measure_update(record)
        if self.shares is not None:
            self.shares.resolve(record)
        if self.update is not None:
            self._measure_step_size(record, self.update.precision)
            self._measure_norm_by_hand(record)
        return record

    def _measure_between(self, record: StepRecord, tolerance: float) -> None:
        """What changed the gradients between two backwards.

        One factor is a part of the weights of earlier micro-batches: a schedule of pipeline stages
        that runs several times in a window scales the gradients each time, and a loop may, by
        mistake. Other facts show the factors of clipping, unscaling and collectives. Of what else a
        loop does, only what collectives did is followed, by samples; a mask, for example, is not.
        """
        called = {event.after for event in self.events}
        for index, (last, counted) in enumerate(itertools.pairwise(self.micro_batches), 1):
            before, after = last.sample_after, counted.sample_before
            own = None if record.pipeline else last.sample_own  # else: a schedule's factor
            if own is not None:
                before, after = own, after or before
            if before is None or after is None:
                continue
            sent = record.micro_batches[index]
            combined = counted.micro_batch.collectives_between or own is not None
            then, now = before.values(), after.values()
            shown = combined or index in called
            factor = gradient_probe.common_factor(then, now, tolerance)
            if isinstance(factor, str):
                if combined and len(then) == len(now):
                    sent.samples = gradient_probe.sent_samples(then, now)
                if record.pipeline and not sent.fresh:
                    sent.missing["rescaled"] = factor
            elif abs(factor - 1) > tolerance and not sent.fresh and (record.pipeline or not shown):
                sent.rescaled = factor

    def _note_combined_in_step(self, record: StepRecord) -> None:
        """The optimizer may have combined the gradients of the ranks in its step, in place.

        Or it did so in other tensors, or averaged the parameters: gradients do not show it.
        """
        before, after = self.sample_before_step, self.sample_at_step
        if before is None or after is None:
            return
        if before.values() == after.values():
            if self.ran_in_step:
                record.missing["sync"] = IN_STEP
            return
        record.sync = "unknown"
        self.norms.clear()
        record.missing["norm"] = "the optimizer combines the gradients in its step"

    def _measure_factor(self, record: StepRecord, tolerance: float) -> None:
        if "post_factor" in record.missing:
            return  # the missing sample then means nothing
        before, after = self.last_sample(), self.sample_at_step
        record.empty = after is None or not any(after.values())
        if after is None and before is not None and any(before.values()):
            record.post_factor = 0.0  # the loop zeroed the gradients
            return
        if before is None or after is None:
            record.missing.setdefault("post_factor", UNSAMPLED)
            return
        factor = gradient_probe.common_factor(before.values(), after.values(), tolerance)
        total = self._total_if_cleared()
        if total and isinstance(factor, str) and any(after.values()):
            factor = gradient_probe.common_factor(total, after.values(), tolerance)
            record.moved = isinstance(factor, float) or was_clipped(self.events, total, tolerance)
        if factor == gradient_probe.CHANGED:
            factor = besides_clip_by_value(record.events) or factor
        if record.moved or total == before.values():  # nothing was lost
            for micro_batch in record.micro_batches[1:]:
                micro_batch.fresh = False
        own, begun = self.sample_after_own_step, self.sample_before_step or after
        hooked = "" if own is not None and own.values() == begun.values() else self.hooked
        if isinstance(factor, float) and not hooked:
            record.post_factor = factor
            return
        record.missing.setdefault("post_factor", hooked or str(factor))
        if self.adopted:
            self._note_moved(record)
            for micro_batch in record.micro_batches:
                micro_batch.missing["rescaled"] = ASSIGNED
            return
        record.changed = bool(hooked) or factor == gradient_probe.CHANGED
        if self.may_be_combined and not isinstance(factor, float):  # else hooks combined them
            record.samples = gradient_probe.sent_samples(before.values(), after.values(), total)

    def _total_if_cleared(self) -> list[float]:
        """The sum of what the backwards left before each clearing; empty if nothing was cleared.

        If the loop moves gradients to its own buffers, and back before the step, they are fresh in
        the middle of the window, and yet none are lost: this sum, times one factor, is what is
        stepped on. If it also combines the ranks, the sum of their sums is.
        """
        cleared = [counted.was_fresh() for counted in self.micro_batches[1:]]
        if not any(cleared):
            return []
        pairs = zip(self.micro_batches, [*cleared, True], strict=True)
        last_before_clearing = [counted.sample_after for counted, is_last in pairs if is_last]
        if None in last_before_clearing:
            return []  # FSDP accumulated them outside ``.grad``
        samples = [sample.values() for sample in last_before_clearing if sample is not None]
        return [sum(column) for column in zip(*samples, strict=False)]

    @staticmethod
    def _note_moved(record: StepRecord) -> None:
        record.moved = True
        for micro_batch in record.micro_batches[1:]:
            micro_batch.fresh = False

    def _measure_sample(self, record: StepRecord, tolerance: float) -> None:
        if self.sample_at_step is not None:
            values = self.sample_at_step.values()
            record.zero_share = round(values.count(0.0) / len(values), 4)
            if not self.micro_batches and self.sample_at_last_step is not None:
                last = self.sample_at_last_step.values()
                record.repeat = gradient_probe.is_reused(last, values, tolerance)
        samples = [
            AccumulatedSample(
                counted.sample_after.values(),
                fresh=bool(counted.was_fresh()),
                combined=counted.micro_batch.wrapper == "sync",
            )
            for counted in self.micro_batches
            if counted.sample_after is not None
        ]
        if len(samples) == len(self.micro_batches):
            added = gradient_probe.added(samples)
            record.noise = gradient_probe.noise(samples, added)
            for sent, square in zip(record.micro_batches, added, strict=False):
                sent.sample_norm = None if square is None else four_digits(math.sqrt(square))

    def _measure_norms(self, record: StepRecord) -> None:
        if norms := [(group, norm) for group, item in self.norms for norm in item.values()]:
            record.nonfinite = sum(1 for _, norm in norms if norm - norm != 0)
            groups = sorted({group for group, _ in norms})
            if len(groups) > 1:
                record.group_norms = [
                    root_of_squares(n for g, n in norms if g == group) for group in groups
                ]
            record.norm = root_of_squares(norm for _, norm in norms)
            return
        clips = [c for c in record.events if c.op == "clip_norm" and c.norm is not None]
        if clips and self.clip_gives_norm():
            clipped = (clips[-1].norm or 0.0) * clip_coefficient(clips[-1])
            record.norm = clipped * factor_after_clip(clips[-1], record.post_factor)

    def _measure_update(self, record: StepRecord) -> None:
        if self.replica is not None:
            record.replica = self.replica.resolve()
        if self.layers is not None and "layers" not in record.missing:
            record.layers = self.layers.resolve(record.grad_scale)
        if self.unheld is not None:
            record.unheld = self.unheld.resolve()
        if self.models is not None:
            record.models = self.models.resolve()
            record.averaging = record.models is not None and self.models.gradient is None
        if self.parameters_before is None:
            return
        before = self.parameters_before.values()
        record.parameters = gradient_probe.fingerprint(before)
        if self.parameters_after is not None:
            after = self.parameters_after.values()
            record.update_ratio = gradient_probe.relative_change(before, after)

    def _measure_norm_by_hand(self, record: StepRecord) -> None:
        """The norm after the last backward, times what the loop multiplied the gradients by.

        ``nonfinite`` is that of all backwards of the window.
        """
        norms = [c.norms.values() for c in self.micro_batches if c.norms is not None]
        if len(norms) < len(self.micro_batches) or not norms:
            return
        record.nonfinite = sum(1 for each in norms for norm in each if norm - norm != 0)
        other = any(counted.was_fresh() for counted in self.micro_batches[1:])
        other = other or any(event.op == "clip_value" for event in self.events)
        if record.norm is None and record.post_factor is not None and not other:
            record.norm = root_of_squares(norms[-1]) * abs(record.post_factor)
            record.missing.pop("norm", None)

    def _measure_step_size(self, record: StepRecord, precision: float) -> None:
        """The step size of an update by hand; and which of the gradients it used.

        If the gradients were cleared inside the window, the update used their sum (the loop has
        own buffers), or those of the last backward alone. Else neither is known.
        """
        last = self.last_sample()
        before, after = self.parameters_before, self.parameters_after
        if last is None or before is None or after is None:
            return
        values = before.values(), after.values()
        if not any(counted.was_fresh() for counted in self.micro_batches[1:]):
            record.step_size = gradient_probe.step_size(*values, last.values(), precision)
            return
        record.step_size = gradient_probe.step_size(*values, self._total_if_cleared(), precision)
        if record.step_size is not None:
            self._note_moved(record)
            return
        record.step_size = gradient_probe.step_size(*values, last.values(), precision)
        if record.step_size is None:
            self._note_moved(record)
            for micro_batch in record.micro_batches:
                micro_batch.missing["rescaled"] = OWN_BUFFERS
