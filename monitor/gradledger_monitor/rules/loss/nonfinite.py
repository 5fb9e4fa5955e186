"""loss.nonfinite"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from gradledger_monitor.ingest.schema import LeftOpen
from gradledger_monitor.model.findings import Doubt, Outcome, Severity
from gradledger_monitor.model.numbers import number
from gradledger_monitor.model.step_facts import StepFacts
from gradledger_monitor.model.unmeasured import OF_CHANGES
from gradledger_monitor.rules.circumstances import Onset
from gradledger_monitor.rules.definition import DEFAULTS
from gradledger_monitor.rules.number_text import counted
from gradledger_monitor.rules.rule import (
    ALSO_AT_THE_END,
    Rule,
    Window,
    finding,
    not_applicable,
    not_measured,
    ok,
)
from gradledger_monitor.rules.state import declare

FIX = """\
if not torch.isfinite(loss):
    raise RuntimeError(f"loss {loss} at step {step}: {batch}")   # look at this batch
loss.backward()"""


LATELY = 5  # windows in a row after which earlier ones do not answer for them


class Nonfinite(Rule):
    """The training loss is NaN or infinite.

    **What it sees**

    A loss that backward started from is NaN or infinite, in a window whose step was applied. It
    is a warning if the gradients of the step are finite all the same. If the loss had left its
    range some steps before, the finding states what changed there: one batch may drive the
    parameters so far that the loss overflows later.

    **Why it matters**

    The gradient of such a loss is usually not finite either. One step with it makes parameters
    NaN, and all later training is lost.

    **What to do**

    Look at the batch of the first such step: an empty mask (0/0), a logarithm of zero, a label
    out of range, an overflow in half precision. If the loss grew before, lower the learning
    rate.

    **When it is silent**

    The loss of a micro-batch is a mean over no token, which is 0/0, and the gradients of the
    step are finite. The ``GradScaler`` skipped the step, or the loop discarded the gradients; a
    scaled loss is infinite, which may come from the scale alone. After 5 windows in a row without
    a finite loss, whether the loss is finite is not measured any more.

    **Incidents**

    ultralytics/yolov5#1085
    """

    kind = "T"
    points_at = ("loss", "backward")
    works_on_metric_logs = True
    precondition = ALSO_AT_THE_END
    # norms that left their range before are no symptom: they show how it came to this
    inhibits_later = (
        "ddp.replica_drift",
        "norm.nonfinite",
        "loss.diverging",
        "norm.spike",
        "norm.exploding",
        "norm.vanishing",
    )

    state = declare(_where=str, _onset=Onset, _was_finite=bool, _without=int)

    def __init__(self, thresholds: Mapping[str, float] = DEFAULTS) -> None:
        super().__init__(thresholds)
        self._where = ""  # in which micro-batches of the first step with such a loss
        self._onset = Onset()  # that step
        self._was_finite = False  # in some window
        self._without = 0  # windows in a row in which no loss is known to be finite

    def evaluate(self, window: Window) -> Outcome:
        """The losses of a window, and of what the process left unfinished at its end."""
        left_open = window.facts.record.left_open
        if left_open is not None:
            return _at_the_end(left_open)
        outcome = self._of_window(window)
        self._without = self._without + 1 if outcome.status == "not_measured" else 0
        self._was_finite = self._was_finite or outcome.status == "ok"
        if self._without < LATELY or not self._was_finite:
            return outcome
        latest = counted(self._without, "recorded window")
        return Doubt("not_measured", f"not in the last {latest}: {outcome.reason}")

    def _of_window(self, window: Window) -> Outcome:
        """The losses of the micro-batches that the step applied, or would have applied."""
        facts = window.facts
        if facts.loss_reported is not None and math.isfinite(facts.loss_reported):
            self._onset.watch(window)
            return FINITE  # a sum is finite only if all that it adds up are
        losses = list(_losses(facts))
        if not losses:
            if facts.is_of_changes:
                return not_applicable(OF_CHANGES)
            return not_measured(_why_missing(facts))
        harmless = facts.norm is None or math.isfinite(facts.norm)
        wrong = [each for each in losses if each.is_wrong and not (each.is_empty and harmless)]
        if not wrong:
            finite = any(each.is_finite for each in losses)
            return FINITE if finite else NONE_FINITE
        if facts.record.skipped:
            return SKIPPED
        if not self._onset.step:
            self._where = _where(facts, wrong, len(losses))
            self._onset.note(window)
        return _report(facts, wrong, self._onset, self._where)


class _Loss(NamedTuple):
    """The root of one backward."""

    value: float  # loss scale included
    scaled: bool
    rank: int
    position: int  # of its micro-batch
    is_empty: bool  # a reduction over no token: 0/0 as a mean, and no gradient

    @property
    def is_finite(self) -> bool:
        return math.isfinite(self.value)

    @property
    def is_wrong(self) -> bool:
        """Whether the loss is not finite. A scale may overflow one that is."""
        return math.isnan(self.value) or (math.isinf(self.value) and not self.scaled)


FINITE = ok("the loss is finite")
SKIPPED = not_measured("the loss is not finite, and the GradScaler skipped the step")
NO_BACKWARD = not_applicable("no backward follows")
NONE_FINITE = not_measured("the scaled loss overflows, or is a mean over no token")


def _at_the_end(left_open: LeftOpen) -> Outcome:
    """Backwards that no step followed: what they show comes after all that was measured."""
    if not left_open.backwards:
        return NO_BACKWARD
    if 2 * left_open.nonfinite < left_open.backwards:
        return not_measured("no step follows")
    of = counted(left_open.backwards, "backward")
    return Doubt(
        "not_measured",
        f"the loss was not finite at {left_open.nonfinite:,} of the last {of}, and no step "
        "followed",
    )


def _losses(facts: StepFacts) -> Iterator[_Loss]:
    for rank, applied in facts.applied_by_rank.items():
        for index, micro_batch in applied:
            loss = number(micro_batch.loss)
            if loss is not None and not micro_batch.relayed:
                scaled = micro_batch.scale is not None or "scale" in micro_batch.missing
                terms = micro_batch.terms
                is_empty = bool(terms) and all(term.tokens == 0 for term in terms)
                yield _Loss(loss, scaled, rank, index, is_empty)


def _why_missing(facts: StepFacts) -> str:
    reasons = (m.missing.get("loss") for _, m in facts.applied)
    return next(filter(None, reasons), "no loss was recorded")


def _report(facts: StepFacts, wrong: list[_Loss], onset: Onset, where: str) -> Outcome:
    norm, step = facts.norm, onset.step
    text = "NaN" if math.isnan(wrong[0].value) else "infinite"
    finite = norm is not None and math.isfinite(norm)
    severity: Severity = "warning" if finite else "error"
    return finding(
        severity,
        f"The training loss is {text}",
        f"The loss was first not finite at step {step:,}{where}.{onset.text} It is {text} at step "
        f"{facts.step:,}, {_gradient(norm)}.",
        FIX,
        loss=str(wrong[0].value),
        since=step,
        rank=wrong[0].rank,
        micro_batch=wrong[0].position,
        micro_batches=len(wrong),
        norm=None if norm is None else str(norm),
        **onset.evidence,
    )


def _gradient(norm: float | None) -> str:
    if norm is None:
        return "where the norm of the gradients was not measured"
    if math.isfinite(norm):
        return "where the applied gradients are finite all the same"
    return "where the applied gradients are not finite either"


def _where(facts: StepFacts, wrong: list[_Loss], losses: int) -> str:
    """In which of its micro-batches."""
    if losses == 1:
        return ""
    if len(wrong) > 1:
        return f", in {len(wrong)} of {counted(losses, 'micro-batch')}"
    (first,) = wrong
    rank = f" of rank {first.rank}" if len(facts.records) > 1 else ""
    return (
        f", in micro-batch {first.position + 1} of {len(facts.applied_by_rank[first.rank])}{rank}"
    )
