"""loop.dropped_windows"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping

from gradledger_monitor.ingest.schema import Event, MicroBatch
from gradledger_monitor.model.findings import Outcome
from gradledger_monitor.model.numbers import number
from gradledger_monitor.model.step_facts import StepFacts
from gradledger_monitor.model.unmeasured import without_backward
from gradledger_monitor.rules.definition import DEFAULTS, Parameter
from gradledger_monitor.rules.number_text import percent
from gradledger_monitor.rules.rule import OK, Rule, Window, finding, not_measured
from gradledger_monitor.rules.sliding_count import push
from gradledger_monitor.rules.state import declare

WINDOWS = 3  # with batches that no backward followed

FIX = """\
if not torch.isfinite(loss):
    dropped += 1                     # count and report what the guard leaves out
    print(f"dropped {dropped} of {step} windows: batch {batch_index}, loss {loss.item()}")"""

FIX_LIMIT = """\
if norm > limit:
    dropped += 1                     # count and report what the guard leaves out
    print(f"dropped {dropped} of {step} windows: batch {batch_index}, norm {norm.item()}")"""

MEASURED = (
    "Their norms were measured before, and are larger than those of the steps that followed: a "
    "guard with a limit of the norm does this."
)
NOT_MEASURED = (
    "A guard in the loop may drop them, or they serve to measure, or to correct other gradients."
)


class DroppedWindows(Rule):
    """A guard in the loop drops many windows.

    **What it sees**

    At least 10, and more than 20%, of the last 100 windows were zeroed without a step, after a
    loss, or a norm that clipping measured, that was not finite. From 5 on, and more than 5%, it is
    information: of 100 windows, a guard that drops 1% by chance reaches that in less than one of
    1,000 spans. Under a loss scale, which settles in the first windows, only 100 count.

    Windows of one micro-batch with finite losses and norms that are zeroed, from 10 and 20% on, are
    information, because the reason is not known. Whole windows of several whose norm was measured,
    and is larger than that of the step that followed, are a warning: a guard with a limit of the
    norm. A guard that leaves out the backward is information, too: of the batches that the last 100
    windows drew from the only training DataLoader, as many were followed by no backward, in at
    least 3 windows.

    **Why it matters**

    A guard against NaN is meant for a rare batch. If it drops many, their data is not used, and
    what makes them fail is not looked for. The reported loss is that of the other windows.

    **What to do**

    Count what the guard drops. Look for the first batch and operation that are not finite: an
    empty mask, a logarithm of zero, corrupt values, an overflow in half precision. Choose a limit
    of the norm that few steps exceed, or clip.

    **When it is silent**

    A guard that drops windows now and then; windows of a loop that drops some before each step,
    unless a norm explains them and their number varies; windows of several micro-batches with
    finite losses and no larger norm (``loop.discarded_microbatches`` reports them); windows whose
    data runs again, or on which another optimizer steps; windows that a ``GradScaler`` skips
    (another rule); batches that are left out before the first step (a resumed epoch), in a loop
    that always draws several for one backward, or from one of several loaders; batches of a list,
    which are not counted.

    **Incidents**

    textbook (a guard on the norm)
    """

    kind = "T"
    points_at = ("backward", "zero_grad", "step")
    many = Parameter(10, "dropped windows that are reported")
    share = Parameter(0.2, "share of dropped windows among the recent ones", most=1.0)
    few = Parameter(5, "dropped windows that are information")
    few_share = Parameter(0.05, "share of dropped windows that is information", most=1.0)
    recent = Parameter(100, "number of recent windows")

    state = declare(
        _last=deque[bool],
        _dropped=int,
        _finite=deque[bool],
        _finite_dropped=int,
        _accumulates=bool,
        _smaller=bool,
        _drawn=deque[tuple[int, int]],
    )

    def __init__(self, thresholds: Mapping[str, float] = DEFAULTS) -> None:
        super().__init__(thresholds)
        self._last: deque[bool] = deque(maxlen=self.recent)  # whether each was dropped
        self._dropped = 0  # number of those that were
        # the same of windows whose losses and norms were finite, all of one micro-batch or of more
        self._finite: deque[bool] = deque(maxlen=self.recent)
        self._finite_dropped = 0
        self._accumulates = False
        self._smaller = False  # a norm was below that of the step: no limit dropped it
        # batches that each of the last windows drew, and its backwards
        self._drawn: deque[tuple[int, int]] = deque(maxlen=self.recent)

    def evaluate(self, window: Window) -> Outcome:
        """Windows before this step whose gradients were zeroed, among the recent ones."""
        facts = window.facts
        if not facts.record.micro_batches:
            return not_measured(without_backward(facts.record))
        for _ in range(dropped_by_guard(facts)):
            self._dropped += push(self._last, True)
        self._dropped += push(self._last, False)
        self._count_finite(facts)
        left_out = self._without_backward(facts)
        if not self._are_many(self._dropped, len(self._last)):
            return self._of_finite(facts) or left_out or self._of_few(facts) or OK
        return finding(
            "warning",
            "The loop drops many windows",
            f"{self._dropped} of the last {len(self._last)} windows were zeroed without a step, "
            "after a loss or a norm that was not finite. Their data was not used.",
            FIX,
            dropped=self._dropped,
            of=len(self._last),
        )

    def _count_finite(self, facts: StepFacts) -> None:
        if self._accumulates != (facts.micro_batches > 1):
            self._accumulates = not self._accumulates
            self._finite.clear()
            self._finite_dropped = 0
        self._smaller |= drops_smaller(facts)
        for _ in range(_dropped_finite(facts)):
            self._finite_dropped += push(self._finite, True)
        self._finite_dropped += push(self._finite, False)

    def _are_many(self, dropped: int, windows: int) -> bool:
        return dropped >= self.many and dropped > self.share * windows

    def _of_few(self, facts: StepFacts) -> Outcome | None:
        """More windows than chance explains, and too few to call it a mistake."""
        windows = len(self._last)
        if self._dropped < self.few or self._dropped <= self.few_share * windows:
            return None
        if facts.scale is not None and windows < self.recent:
            return None  # a loss scale settles in the first windows
        return finding(
            "info",
            "The loop drops some windows",
            f"{self._dropped} of the last {windows} windows ({percent(self._dropped / windows)}) "
            "were zeroed without a step, after a loss or a norm that was not finite. Their data "
            "was not used.",
            FIX,
            dropped=self._dropped,
            of=windows,
        )

    def _of_finite(self, facts: StepFacts) -> Outcome | None:
        """Windows that were dropped for a reason that is not recorded.

        Of several micro-batches whose norm was measured, it is a guard with a limit of the norm.
        """
        if not self._are_many(self._finite_dropped, len(self._finite)):
            return None
        measured = self._accumulates
        before_steps = _runs(self._finite)
        if all(before_steps) and not (measured and len(set(before_steps)) > 1):
            return None  # before each step: the loop is made so, and no guard lets any pass
        if measured and self._smaller:
            return None
        may = MEASURED if measured else NOT_MEASURED
        return finding(
            "warning" if measured else "info",
            "Many windows are zeroed without a step",
            f"The gradients of {self._finite_dropped} of the last {len(self._finite)} windows were "
            f"zeroed, and no optimizer stepped on them. Their losses were finite. {may}",
            FIX_LIMIT if measured else FIX,
            dropped=self._finite_dropped,
            of=len(self._finite),
        )

    def _without_backward(self, facts: StepFacts) -> Outcome | None:
        """Batches that were drawn, and that no backward followed."""
        drawn, backwards = facts.record.batches, len(facts.record.micro_batches)
        if drawn is None or not backwards or facts.step == 1:
            return None
        self._drawn.append((drawn, backwards))
        if drawn <= backwards:  # it can only become less
            return None
        # how many batches a backward takes: at least as many as in the window that took the fewest
        each = min(batches / count for batches, count in self._drawn)
        unused = [batches - each * count for batches, count in self._drawn]
        left_out, total = round(sum(unused)), sum(batches for batches, _ in self._drawn)
        windows = sum(1 for batches in unused if batches >= 1)
        is_many = left_out >= self.many and left_out > self.share * total
        if not is_many or windows < WINDOWS or each < 1:
            return None
        return finding(
            "info",
            "Many batches are followed by no backward",
            f"{left_out:,} of the {total:,} batches that the last {len(self._drawn)} windows drew "
            "were followed by no backward, so they trained nothing. A guard in the loop may leave "
            "them out.",
            FIX,
            left_out=left_out,
            of=total,
        )


def _runs(dropped: Iterable[bool]) -> list[int]:
    """The number of dropped windows before each step but the first, whose windows may be older."""
    runs = [0]
    for one in dropped:
        runs[-1] += one
        if not one:
            runs.append(0)
    return runs[1:-1]


def dropped_by_guard(facts: StepFacts) -> int:
    """Windows zeroed before an optimizer stepped on them, of which a value was not finite."""
    if not facts.discarded:
        return 0
    zeroed = facts.record.micro_batches[: facts.applied_from]
    return sum(_is_nonfinite(facts, *span) for span in _spans(zeroed))


def _dropped_finite(facts: StepFacts) -> int:
    """Windows as long as the last one that were zeroed before any optimizer stepped on them.

    The parameters did not change in between, and the losses show no reason. Of several
    micro-batches, those that a limit of the norm explains (``guarded``).
    """
    record = facts.record
    if not facts.discarded or facts.step == 1 or facts.moved_unknown is not None:
        return 0
    applied, zeroed = facts.applied_from, record.micro_batches[: facts.applied_from]
    length = len(record.micro_batches) - applied
    spans = list(_spans(zeroed))
    if any(m.parameters_changed for m in zeroed) or any(j - i != length for i, j in spans):
        return 0
    discarded = {id(each) for each in facts.discarded}
    spans = [(i, j) for i, j in spans if length == 1 or _is_larger(facts, j)]
    return sum(id(zeroed[i]) in discarded and not _is_nonfinite(facts, i, j) for i, j in spans)


def guarded(facts: StepFacts) -> Iterator[MicroBatch]:
    """Micro-batches of windows that were prepared for a step, and that a limit of the norm dropped.

    A clip measured the norm after the last of as many as the step applies: the loop had come to
    its step, and not to the end of an epoch. Their norm is larger than that of the step, as all
    that a limit drops have: see ``drops_smaller``.
    """
    for begin, end in _prepared(facts):
        if _is_larger(facts, end):
            yield from facts.record.micro_batches[begin:end]


def drops_smaller(facts: StepFacts) -> bool:
    """Whether a window of a smaller norm than that of the step was dropped, so by no limit."""
    return any(not _is_larger(facts, end) for _, end in _prepared(facts))


def _prepared(facts: StepFacts) -> Iterator[tuple[int, int]]:
    """Windows of several micro-batches, as many as the step applies, whose norm was measured."""
    record, applied = facts.record, facts.applied_from
    length = len(record.micro_batches) - applied
    for begin, end in _spans(record.micro_batches[:applied]):
        if end - begin == length > 1 and _measured(facts, end) is not None:
            yield begin, end


def _is_larger(facts: StepFacts, end: int) -> bool:
    """Whether the norm that a clip measured there is larger than that before the step."""
    dropped, stepped = _measured(facts, end), _measured(facts, len(facts.record.micro_batches))
    return dropped is not None and stepped is not None and dropped > stepped


def _measured(facts: StepFacts, end: int) -> float | None:
    norms = [number(e.norm) for e in facts.record.events if e.op == "clip_norm" and e.after == end]
    return norms[0] if norms else None


def _spans(micro_batches: list[MicroBatch]) -> Iterator[tuple[int, int]]:
    """Begin and end of each run of micro-batches whose gradients accumulate."""
    begins = [i for i, m in enumerate(micro_batches) if m.fresh or not i]
    ends = [*begins[1:], len(micro_batches)] if begins else []
    return zip(begins, ends, strict=True)


def _is_nonfinite(facts: StepFacts, begin: int, end: int) -> bool:
    micro_batches = facts.record.micro_batches[begin:end]
    if any(m.claimed for m in micro_batches):
        return False
    losses = [number(m.loss) for m in micro_batches]
    norms = [number(e.norm) for e in facts.record.events if _is_clip(e, begin, end)]
    return any(value is not None and not math.isfinite(value) for value in (*losses, *norms))


def _is_clip(event: Event, begin: int, end: int) -> bool:
    return event.op == "clip_norm" and begin < event.after <= end
