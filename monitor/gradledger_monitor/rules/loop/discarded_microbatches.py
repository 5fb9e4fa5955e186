"""loop.discarded_microbatches"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from gradledger_monitor.ingest.schema import MicroBatch, StepRecord
from gradledger_monitor.model.findings import Outcome
from gradledger_monitor.model.losses.repeated import discarded, zeroed_beside_others
from gradledger_monitor.model.numbers import number
from gradledger_monitor.model.step_facts import StepFacts
from gradledger_monitor.model.unmeasured import without_backward
from gradledger_monitor.rules.balance.explanations import DISCARDED
from gradledger_monitor.rules.definition import DEFAULTS
from gradledger_monitor.rules.gradient_scale_effects import constant_factor_effect
from gradledger_monitor.rules.loop.dropped_windows import drops_smaller, guarded
from gradledger_monitor.rules.number_text import counted, significant
from gradledger_monitor.rules.objective_names import counted_tokens
from gradledger_monitor.rules.rule import OK, Rule, Window, finding, not_measured
from gradledger_monitor.rules.state import declare

FIX = """\
for i, (x, y) in enumerate(loader):
    k = min(K, len(loader) - i // K * K)  # micro-batches of this window: fewer in an epoch's last
    (loss_fn(model(x), y) / k).backward()
    if (i + 1) % K == 0 or i + 1 == len(loader):
        optimizer.step()
        optimizer.zero_grad()"""

FIX_SECOND_PASS = """\
for x, y in batches:                          # all of the window, as in the first pass
    (loss_fn(model(x), y) / len(batches)).backward()"""

FIX_OTHER_LOSS = "# Zero the gradients before the first backward of a window, not between losses."

# A loop that steps on every micro-batch may discard one now and then. One that accumulates has a
# window of a single micro-batch where ``i % K == 0`` or an epoch begins.
FEW_SINGLE = 8
LEAST_SCALE, LOWERED = 128.0, 1.5  # a loss scale by hand, and the factor by which it goes down


class DiscardedMicrobatches(Rule):
    """Accumulated gradients are discarded without a step.

    **What it sees**

    Micro-batches whose gradients were zeroed before any optimizer stepped on them. Or, where the
    parameters were moved before, and some of the data ran again (SAM): a step on that part alone,
    whose balance is the part's share of the micro-batches. Where another loss of the same data was
    applied, it is information: the one that was zeroed may be measured only. So it is where another
    rank discards nothing: one rank may measure gradients between the steps.

    **Why it matters**

    Their forward and backward cost time, but their tokens are not used. Often it is the tail of
    each epoch, so the same share of the data each time.

    **What to do**

    Step on the last, shorter window, or continue it into the next epoch. Do not zero gradients
    at the start of an epoch.

    **When it is silent**

    The same losses run again on the same data; a backward for the gradient of an input (adversarial
    training), which is looked for in the first 16 backwards, and as long as there is one; the loss
    or the norm was not finite; the loop multiplies its losses by 128 or more, and lowered that
    factor after it discarded gradients, as a loss scale by hand after an overflow; or all whole
    windows that were discarded had larger norms than the step, so that a guard discarded the
    gradients (``loop.dropped_windows`` counts those); more than one in eight windows hold a single
    micro-batch and this one applies a single one, so the loop does not accumulate; the backward
    belongs to another optimizer, which may step later; the parameters changed before the gradients
    were zeroed (SAM); backwards before the first step, which may measure gradients.

    **Incidents**

    ultralytics/ultralytics#11217, hpcaitech/ColossalAI#1030, timoschick/pet#36
    """

    points_at = ("zero_grad", "backward", "step")
    single_calls = ("zero_grad",)  # as at the start of each epoch

    state = declare(_windows=int, _single=int, _smaller=bool)

    def __init__(self, thresholds: Mapping[str, float] = DEFAULTS) -> None:
        super().__init__(thresholds)
        self._windows = 0
        self._single = 0  # of these, that held one micro-batch
        self._smaller = False  # a window was dropped whose norm is below that of the step

    def evaluate(self, window: Window) -> Outcome:
        """Micro-batches that were zeroed inside the window."""
        facts = window.facts
        record = facts.record
        self._windows += 1
        self._single += len(record.micro_batches) == 1
        self._smaller |= drops_smaller(facts)
        if not record.micro_batches:
            return not_measured(without_backward(record))
        accumulates = len(facts.applied) > 1 or self._single * FEW_SINGLE <= self._windows
        if not accumulates or _has_nonfinite_norm(record):
            return OK
        if not facts.discarded:
            return _of_second_pass(window) or _of_other_loss(facts) or OK
        if facts.moved_unknown is not None:
            return not_measured(facts.moved_unknown)
        dropped = set() if self._smaller else set(map(id, guarded(facts)))
        lost = [m for m in facts.discarded if _finite(m) and id(m) not in dropped]
        if not lost or facts.step == 1 or _is_scale_lowered(lost, [m for _, m in facts.applied]):
            return OK
        tokens, held = counted_tokens(lost)
        if _discarded_alone(facts):
            return _of_one_rank(facts, lost)
        return finding(
            "warning",
            "Accumulated gradients are discarded",
            f"The gradients of {counted(len(lost), 'micro-batch')} ({held}) "
            f"were zeroed before {_effect(facts)}.",
            FIX,
            discarded=len(lost),
            discarded_tokens=tokens,
            micro_batches=len(record.micro_batches),
        )


def _discarded_alone(facts: StepFacts) -> bool:
    """Whether another rank has discarded nothing: all ranks run the same loop."""
    pairs = ((r, facts.applied_by_rank[rank]) for rank, r in facts.records.items())
    return any(record.micro_batches and not discarded(record, of) for record, of in pairs)


def _of_one_rank(facts: StepFacts, lost: list[MicroBatch]) -> Outcome:
    """Information: where the rank is asked for, as before a log, this is no part of training."""
    tokens, held = counted_tokens(lost)
    rank = facts.lowest_rank
    return finding(
        "info",
        f"Rank {rank} zeroes gradients that other ranks do not have",
        f"On rank {rank}, the gradients of {counted(len(lost), 'micro-batch')} ({held}) were "
        "zeroed before the step, and other ranks have zeroed none in this window. If only this "
        "rank measures gradients there, nothing is wrong. If its batches end in the middle of a "
        "window, this data is not used.",
        FIX,
        discarded=len(lost),
        discarded_tokens=tokens,
        micro_batches=len(facts.record.micro_batches),
    )


def _of_other_loss(facts: StepFacts) -> Outcome | None:
    """Information: a loop may measure the gradient of another loss, and zero it on purpose."""
    if facts.step == 1 or not facts.applied_from:
        return None
    zeroed = zeroed_beside_others(facts.record, facts.applied)
    if zeroed and facts.moved_unknown is not None:
        return not_measured(facts.moved_unknown)  # they may be kept in other buffers
    if not zeroed:
        return None
    backwards = counted(len(zeroed), "backward")
    return finding(
        "info",
        "The gradients of another loss on the same data are zeroed",
        f"In this window, the gradients of {backwards} were zeroed, and those of another loss of "
        "the same targets were applied. If they are measured only, nothing is wrong. If both "
        "losses are to train the parameters, the first one is lost.",
        FIX_OTHER_LOSS,
        zeroed=len(zeroed),
        micro_batches=len(facts.record.micro_batches),
    )


def _of_second_pass(window: Window) -> Outcome | None:
    """Some micro-batches ran again after the parameters were moved, and are divided by all.

    Information for 2 of them, because a loss may have the factor one half of its formula.
    """
    facts, objective = window.facts, window.balance.objective
    lost = len(facts.left_out_of_second_pass)
    if not lost or objective is None or window.balance.reason != DISCARDED:
        return None
    k = facts.micro_batches_of(objective)
    others = "other one" if k == 1 else f"other {k}"
    runs = "runs again, and its" if k == 1 else "run again, and their"
    return finding(
        "info" if k + lost == 2 else "warning",
        f"The step applies {k} of {k + lost} micro-batches, and divides by {k + lost}",
        f"The gradients of {counted(lost, 'micro-batch')} only moved the parameters, as the first "
        f"pass of sharpness-aware minimization does, and were zeroed. The {others} {runs} loss is "
        f"divided by {k + lost}: the balance is {significant(objective.ledger.balance)}. "
        f"{constant_factor_effect(k / (k + lost), facts)}.",
        FIX_SECOND_PASS,
        discarded=lost,
        micro_batches=k,
        balance=round(objective.ledger.balance, 6),
    )


def _effect(facts: StepFacts) -> str:
    """Of several optimizers, another one may have stepped on them."""
    if len(facts.run.optimizers) <= 1:
        return "any optimizer stepped on them, so this data was not used"
    label = facts.optimizer_label
    return f"{label} stepped on them, so the parameters of {label} were not trained on this data"


def _is_scale_lowered(lost: Sequence[MicroBatch], applied: Sequence[MicroBatch]) -> bool:
    """Whether the loop lowered the loss scale by hand after these: some gradient overflowed."""
    before = [factor for m in lost for factor in _loss_factors(m)]
    after = [factor for m in applied for factor in _loss_factors(m)]
    if not before or not after:
        return False
    return min(before) >= LEAST_SCALE and min(before) >= LOWERED * max(after)


def _loss_factors(micro_batch: MicroBatch) -> Iterator[float]:
    """The gradients that arrive at its losses."""
    for term in micro_batch.terms:
        weight = number(term.weight)
        if weight is not None:
            yield abs(weight) * ((term.tokens or 1) if term.reduction == "mean" else 1)


def _finite(micro_batch: MicroBatch) -> bool:
    loss = number(micro_batch.loss)
    return loss is None or math.isfinite(loss)


def _has_nonfinite_norm(record: StepRecord) -> bool:
    """Whether a clip in the window measured a norm that is not finite: a reason to discard."""
    norms = [number(e.norm) for e in record.events if e.op == "clip_norm"]
    return any(n is not None and not math.isfinite(n) for n in norms)
