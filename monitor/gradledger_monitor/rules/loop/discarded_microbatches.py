"""loop.discarded_microbatches"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from gradledger_monitor.ingest.schema import MicroBatch, StepRecord
from gradledger_monitor.model.clipping import unscale_factor
from gradledger_monitor.model.findings import Outcome, Withdrawal
from gradledger_monitor.model.losses.names import IndexedMicroBatches
from gradledger_monitor.model.losses.repeated import (
    data_of,
    discarded,
    have_calls_and_data_apart,
    zeroed_beside_others,
)
from gradledger_monitor.model.numbers import number
from gradledger_monitor.model.step_facts import StepFacts
from gradledger_monitor.model.unmeasured import without_backward
from gradledger_monitor.rules.balance.divisors import DISCARDED
from gradledger_monitor.rules.ddp.common import names
from gradledger_monitor.rules.definition import DEFAULTS
from gradledger_monitor.rules.framework_fixes import MEASURE
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
FEW, LEAST = 8, 3  # discards in more than one of 8 windows, and 3 or more, are no exception
LEAST_SCALE, LOWERED = 128.0, 1.5  # a loss scale by hand, and the factor by which it goes down
MOST_HELD = 64  # fingerprints of a window that are compared with those of the next one
UNDIVIDED = 0.01  # relative tolerance of a factor of K between two losses
HELD = "gradients that were zeroed may be measured: their data is the same each time"
LENGTHS, WHOLE = 4, 0.01  # lengths of windows that no K explains, tolerance of a balance of 1
GUARDED = (
    "windows of many lengths that apply one micro-batch, whose loss is not divided: a guard in the "
    "loop may drop the others"
)


class WindowLengths:
    """The numbers of micro-batches in the windows after the first.

    A loop that accumulates K has windows of K, and other ones where an epoch ends. One that steps
    on each micro-batch, and has a guard that drops many of them, has windows of all lengths, also
    of a single micro-batch: all that no micro-batch was dropped in. A budget of tokens, or a K that
    grows, gives many lengths as well, and none of 1.
    """

    state: ClassVar[Mapping[str, Any]] = declare(_lengths=list[int], _last=int, _varied=int)

    def __init__(self) -> None:
        self._lengths: list[int] = []  # different ones, as many as are needed
        self._last = 0  # the length of the window before
        self._varied = 0  # windows that differ from that, less two for each one that does not

    def show_guard(self, window: Window) -> bool:
        """Whether they vary, and this window applies one micro-batch, as a whole batch."""
        facts, total = window.facts, len(window.facts.record.micro_batches)
        if facts.step > 1:
            self._count(total)
        if len(self._lengths) < LENGTHS or self._varied < 0 or len(facts.applied) != 1:
            return False
        objective = window.balance.objective
        return objective is None or abs(objective.ledger.balance - 1) < WHOLE

    def _count(self, total: int) -> None:
        """Remember its length: that of a single micro-batch is always needed."""
        self._varied += 0 if not self._last else -2 if self._last == total else 1
        self._last = total
        room = LENGTHS if total == 1 or 1 in self._lengths else LENGTHS - 1
        if total not in self._lengths and len(self._lengths) < room:
            self._lengths.append(total)


class LastZeroed:
    """The data of the last window that zeroed gradients of another backward call.

    If the next one zeroes those of the same data again, and applies other data than before, this
    data is held to measure gradients. The data of a training loop goes on instead.
    """

    state: ClassVar[Mapping[str, Any]] = declare(_zeroed=list[float], _applied=list[float])

    def __init__(self) -> None:
        self._zeroed: list[float] = []
        self._applied: list[float] = []

    def is_held(self, lost: Sequence[MicroBatch], applied: IndexedMicroBatches) -> bool:
        """Whether the data of these, which were zeroed, is held; the next ones are compared."""
        if not lost:
            return False
        zeroed, of_step = _data(lost), _data([m for _, m in applied])
        if not have_calls_and_data_apart(lost, applied) or len(zeroed) > MOST_HELD:
            zeroed = []
        before, applied_before = self._zeroed, self._applied
        self._zeroed, self._applied = zeroed, of_step[:MOST_HELD]
        again = bool(zeroed) and set(zeroed) <= set(before)
        return again and self._applied != applied_before


def _data(micro_batches: Sequence[MicroBatch]) -> list[float]:
    """The fingerprints of their targets that are known."""
    return sorted({data for m in micro_batches if (data := data_of(m)) is not None})


class DiscardedMicrobatches(Rule):
    """Accumulated gradients are discarded without a step.

    **What it sees**

    Micro-batches whose gradients were zeroed before any optimizer stepped on them. Or, where the
    parameters were moved before, and some of the data ran again (SAM): a step on that part alone,
    whose balance is the part's share of the micro-batches. Where another loss of the same data was
    applied, it is information: the one that was zeroed may be measured only. So it is where another
    rank discards nothing, and all ranks apply equally many micro-batches: a rank with further
    backwards may measure gradients between the steps. And so it is in few windows at irregular
    distances: a guard against a bad batch discards what came before it. And so it is where the
    gradients of another backward call were zeroed, and a callback may measure them: their data is
    the same as the last time, while the data of the steps goes on, or their losses are not divided
    by K, as those of the step are, or no loss is divided and the step applies one; but not if
    DataLoaders delivered a batch for each backward, and their data is not the same. It is a warning
    if the batches of the window show that an epoch ended in it, or the data of the first window
    comes next for the first time, if most discards are as far apart as the ones before, or if they
    are in more than one of eight windows.

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
    micro-batch and this one applies a single one, so the loop does not accumulate; windows of four
    lengths or more, some with a single micro-batch, which change from one to the next, and of which
    one micro-batch is applied, undivided: it is not measured (``loop.dropped_windows`` counts what
    a guard drops), and an earlier finding is withdrawn; the backward belongs to another optimizer,
    which may step later; the parameters changed before the gradients were zeroed (SAM); backwards
    before the first step, which may measure gradients.

    **Incidents**

    ultralytics/ultralytics#11217, hpcaitech/ColossalAI#1030, timoschick/pet#36
    """

    points_at = ("zero_grad", "backward", "step")
    single_calls = ("zero_grad",)  # as at the start of each epoch

    state = declare(
        _windows=int,
        _single=int,
        _smaller=bool,
        _batch_each=bool,
        _discards=int,
        _regular=int,
        _last=int,
        _distance=int,
        _first=float | None,
        _repeats=bool,
        _last_zeroed=LastZeroed,
        _is_one_tail=bool,
        _lengths=WindowLengths,
    )

    def __init__(self, thresholds: Mapping[str, float] = DEFAULTS) -> None:
        super().__init__(thresholds)
        self._windows = 0
        self._single = 0  # of these, that held one micro-batch
        self._smaller = False  # a window was dropped whose norm is below that of the step
        self._batch_each = False  # each backward of the last whole window had a separate batch
        self._discards = 0  # windows that discarded some
        self._regular = 0  # of these, that were as far from the one before as that from its own
        self._first: float | None = None  # the fingerprint of the data of the first micro-batch
        self._repeats = False  # it came again without a discard: no epoch need end before it
        self._last_zeroed = LastZeroed()
        self._lengths = WindowLengths()
        self._is_one_tail = False  # the one discard so far was named as the tail of an epoch
        self._last, self._distance = 1, 0  # the step of the last one, and that distance

    def evaluate(self, window: Window) -> Outcome:
        """Micro-batches that were zeroed inside the window."""
        facts = window.facts
        record = facts.record
        self._windows += 1
        self._single += len(record.micro_batches) == 1
        self._smaller |= drops_smaller(facts)
        if not record.micro_batches:
            return not_measured(without_backward(record))
        if self._lengths.show_guard(window):
            return Withdrawal("not_measured", GUARDED)
        begins_anew = self._begins_anew(facts)
        if not facts.discarded:
            self._batch_each = record.batches == len(record.micro_batches)
        accumulates = len(facts.applied) > 1 or self._single * FEW_SINGLE <= self._windows
        if not accumulates or _has_nonfinite_norm(record):
            return OK
        beside = None if facts.discarded else _of_second_pass(window) or _of_other_loss(facts)
        by_rank = _discarded_by_rank(facts)
        zeroing = [rank for rank, of in by_rank.items() if of]
        if beside or not zeroing:
            return beside or OK
        if facts.moved_unknown is not None:
            return not_measured(facts.moved_unknown) if facts.discarded else OK
        dropped = set() if self._smaller else set(map(id, guarded(facts)))
        on_all = len(zeroing) == len(by_rank)
        ranks = zeroing[:1] if on_all else zeroing
        lost = [m for r in ranks for m in by_rank[r] if _finite(m) and id(m) not in dropped]
        applied = [m for r in ranks for _, m in facts.applied_by_rank[r]]
        is_held = self._last_zeroed.is_held(lost, facts.applied)
        if not lost or facts.step == 1 or _is_scale_lowered(lost, applied):
            return OK
        if not on_all:
            return _of_some_ranks(facts, by_rank, lost)
        self._count(facts.step)
        ends_epoch = self._ends_epoch(record)
        is_whole = not ends_epoch and are_of_whole_losses(lost, facts.applied)
        if not begins_anew and (is_held or is_whole):
            self._repeats = True
            was_tail, self._is_one_tail = is_held and self._is_one_tail, False
            if was_tail:
                return Withdrawal("not_measured", HELD)
            return _of_other_call(facts, lost, is_held)
        self._is_one_tail = ends_epoch and self._discards == 1
        tokens, held = counted_tokens(lost)
        gradients = f"The gradients of {counted(len(lost), 'micro-batch')} ({held})"
        numbers = {
            "discarded": len(lost),
            "discarded_tokens": tokens,
            "micro_batches": len(record.micro_batches),
        }
        if begins_anew or ends_epoch or self._is_habit():
            return finding(
                "warning",
                "Accumulated gradients are discarded",
                f"{gradients} were zeroed before {_effect(facts)}.",
                FIX,
                **numbers,
            )
        return finding(
            "info",
            "Accumulated gradients are discarded in few windows",
            f"{gradients} were zeroed before {_effect(facts)}. So far, {self._discards:,} of "
            f"{counted(self._windows, 'window')} discarded some. A guard against a bad batch may "
            "do this on purpose. If an epoch ended here, its last data is not used.",
            FIX,
            **numbers,
        )

    def _count(self, step: int) -> None:
        distance = step - self._last
        self._regular += abs(distance - self._distance) <= 1
        self._last, self._distance = step, distance
        self._discards += 1

    def _is_habit(self) -> bool:
        """Whether discards come in most epochs, or in many windows. A guard discards by chance."""
        is_regular = self._discards > 1 and 2 * self._regular >= self._discards
        is_frequent = self._discards >= LEAST and self._discards * FEW > self._windows
        return is_regular or is_frequent

    def _begins_anew(self, facts: StepFacts) -> bool:
        """Whether the data of the first window comes again, after a discard, for the first time."""
        data = [number(m.fingerprint) for _, m in facts.applied if not m.constant_target]
        if facts.step == 1:
            self._first = data[0] if data else None
        elif self._first is not None and not facts.discarded:
            self._repeats |= self._first in data
        is_first = bool(data) and data[0] is not None and data[0] == self._first
        return is_first and facts.step > 1 and not self._repeats

    def _ends_epoch(self, record: StepRecord) -> bool:
        """Whether some backwards are of batches of an iterator that has ended since.

        A guard that leaves out the backward of a batch has more batches than backwards.
        """
        drawn = record.batches
        return self._batch_each and drawn is not None and drawn < len(record.micro_batches)


def _discarded_by_rank(facts: StepFacts) -> dict[int, list[MicroBatch]]:
    """Of each rank with micro-batches, those that it discarded."""
    lost = {}
    for rank, record in facts.records.items():
        applied = facts.applied_by_rank[rank]
        if record.micro_batches:
            lost[rank] = discarded(record, applied) if applied and applied[0][0] else []
    return lost


def _has_lost_a_share(facts: StepFacts, by_rank: Mapping[int, list[MicroBatch]]) -> bool:
    """Whether the ranks have as many micro-batches, of which some have zeroed a part."""
    applied = facts.applied_by_rank
    return len({len(applied[rank]) + len(lost) for rank, lost in by_rank.items()}) == 1


def _of_some_ranks(
    facts: StepFacts, by_rank: Mapping[int, list[MicroBatch]], lost: list[MicroBatch]
) -> Outcome:
    """Of ranks that zero gradients while others zero none.

    Information if all apply equally many micro-batches: the backwards that were zeroed are further
    ones, which may only measure gradients. Else these ranks have lost data: a warning.
    """
    zeroing = [rank for rank, of in by_rank.items() if of]
    others = [rank for rank in by_rank if rank not in zeroing]
    has = "has" if len(others) == 1 else "have"
    on, rest = names(zeroing).lower(), names(others).lower()
    none = f"{names(others)} {has} zeroed none in this window"
    equal = len({len(facts.applied_by_rank[rank]) for rank in by_rank}) == 1
    if not equal and facts.lowest_rank not in zeroing and not _has_lost_a_share(facts, by_rank):
        return OK
    tokens, held = counted_tokens(lost)
    numbers = {
        "discarded": len(lost),
        "discarded_tokens": tokens,
        "micro_batches": sum(len(facts.records[rank].micro_batches) for rank in zeroing),
    }
    gradients = f"On {on}, the gradients of {counted(len(lost), 'micro-batch')} ({held})"
    if not equal:
        return finding(
            "warning",
            f"Accumulated gradients are discarded on {on}",
            f"{gradients} were zeroed before {_effect(facts)}. {none}.",
            FIX,
            **numbers,
        )
    return finding(
        "info",
        f"Gradients are zeroed on {on}, and not on {rest}",
        f"{gradients} were zeroed before the step. {none}, and all ranks apply equally many "
        "micro-batches. If gradients are only measured there, nothing is wrong. If the batches "
        "there end in the middle of a window, this data is not used.",
        FIX,
        **numbers,
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


def _of_other_call(facts: StepFacts, lost: list[MicroBatch], is_held: bool) -> Outcome:
    """A callback may measure them; unlikely if DataLoaders delivered a new batch for each."""
    total = len(facts.record.micro_batches)
    is_drawn = sum(facts.record.loader_batches) >= total
    tokens, held = counted_tokens(lost)
    return finding(
        "warning" if is_drawn and not is_held else "info",
        "The gradients of another backward call are zeroed",
        f"In this window, the gradients of {counted(len(lost), 'micro-batch')} ({held}) of another "
        "backward call than those of the step were zeroed. If they are measured only, nothing is "
        "wrong. If they are to train the parameters, this data is not used.",
        MEASURE,
        discarded=len(lost),
        discarded_tokens=tokens,
        micro_batches=total,
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


def are_of_whole_losses(lost: Sequence[MicroBatch], applied: IndexedMicroBatches) -> bool:
    """Whether the losses of another call are no parts of a window.

    They are not divided by K, and those of the step are. If the step applies one micro-batch, none
    of them is divided by the number of all.
    """
    k = len(applied)
    batches = [m for _, m in applied]
    reductions = {term.reduction for m in (*lost, *batches) for term in m.terms}
    if not lost or len(reductions) != 1 or not have_calls_and_data_apart(lost, applied):
        return False
    if k == 1:
        return all(_is_whole(m) for m in (*lost, *batches))
    whole, parts = ([max(_loss_factors(m), default=0.0) for m in of] for of in (lost, batches))
    return min(parts) > 0 and all(
        math.isclose(one, k * part, rel_tol=UNDIVIDED) for one in whole for part in parts
    )


def _is_whole(micro_batch: MicroBatch) -> bool:
    """Whether the token weights of its main loss add up to 1."""
    balances = [
        abs(weight) * (term.tokens or 0) * unscale_factor(micro_batch)
        for term in micro_batch.terms
        if (weight := number(term.weight)) is not None
    ]
    return math.isclose(max(balances, default=0.0), 1.0, rel_tol=UNDIVIDED)


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
