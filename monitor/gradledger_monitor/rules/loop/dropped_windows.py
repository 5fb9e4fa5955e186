"""loop.dropped_windows"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Mapping

from gradledger_monitor.ingest.schema import Event, MicroBatch
from gradledger_monitor.model.findings import Outcome
from gradledger_monitor.model.numbers import number
from gradledger_monitor.model.step_facts import StepFacts
from gradledger_monitor.model.unmeasured import NO_BACKWARD
from gradledger_monitor.rules.definition import DEFAULTS, Parameter
from gradledger_monitor.rules.rule import OK, Rule, Window, finding, not_measured
from gradledger_monitor.rules.sliding_count import push
from gradledger_monitor.rules.state import declare

WINDOWS = 3  # with batches that no backward followed

FIX = """\
if not torch.isfinite(loss):
    dropped += 1                     # count and report what the guard leaves out
    print(f"dropped {dropped} of {step} windows: batch {batch_index}, loss {loss.item()}")"""


class DroppedWindows(Rule):
    """A guard in the loop drops many windows.

    **What it sees**

    At least 10, and more than 20%, of the last 100 windows were zeroed without a step, after a
    loss, or a norm that clipping measured, that was not finite. If the guard leaves out the
    backward, too: of the batches that the last 100 windows drew from the only training DataLoader,
    as many were followed by no backward, in at least 3 windows. That is information, because the
    reason is not known.

    **Why it matters**

    A guard against NaN is meant for a rare batch. If it drops many, their data is not used, and
    what makes them fail is not looked for. The reported loss is that of the other windows.

    **What to do**

    Count what the guard drops. Look for the first batch and operation that are not finite: an
    empty mask, a logarithm of zero, corrupt values, an overflow in half precision.

    **When it is silent**

    A guard that drops windows now and then; finite losses and norms (the guard may look for
    outliers); windows that a ``GradScaler`` skips (another rule); batches that are left out before
    the first step (a resumed epoch), in a loop that always draws several for one backward, or from
    one of several loaders.

    **Incidents**

    textbook (a guard on the norm)
    """

    kind = "T"
    points_at = ("backward", "zero_grad", "step")
    many = Parameter(10, "dropped windows that are reported")
    share = Parameter(0.2, "share of dropped windows among the recent ones", most=1.0)
    recent = Parameter(100, "number of recent windows")

    state = declare(_last=deque[bool], _dropped=int, _drawn=deque[tuple[int, int]])

    def __init__(self, thresholds: Mapping[str, float] = DEFAULTS) -> None:
        super().__init__(thresholds)
        self._last: deque[bool] = deque(maxlen=self.recent)  # whether each was dropped
        self._dropped = 0  # number of those that were
        # batches that each of the last windows drew, and its backwards
        self._drawn: deque[tuple[int, int]] = deque(maxlen=self.recent)

    def evaluate(self, window: Window) -> Outcome:
        """Windows before this step whose gradients were zeroed, among the recent ones."""
        facts = window.facts
        if not facts.record.micro_batches:
            return not_measured(NO_BACKWARD)
        for _ in range(_dropped(facts)):
            self._dropped += push(self._last, True)
        self._dropped += push(self._last, False)
        if self._dropped < self.many or self._dropped <= self.share * len(self._last):
            return self._without_backward(facts)
        return finding(
            "warning",
            "The loop drops many windows",
            f"{self._dropped} of the last {len(self._last)} windows were zeroed without a step, "
            "after a loss or a norm that was not finite. Their data was not used.",
            FIX,
            dropped=self._dropped,
            of=len(self._last),
        )

    def _without_backward(self, facts: StepFacts) -> Outcome:
        """Batches that were drawn, and that no backward followed."""
        drawn, backwards = facts.record.batches, len(facts.record.micro_batches)
        if drawn is None or not backwards or facts.step == 1:
            return OK
        self._drawn.append((drawn, backwards))
        if drawn <= backwards:  # it can only become less
            return OK
        # how many batches a backward takes: at least as many as in the window that took the fewest
        each = min(batches / count for batches, count in self._drawn)
        unused = [batches - each * count for batches, count in self._drawn]
        left_out, total = round(sum(unused)), sum(batches for batches, _ in self._drawn)
        windows = sum(1 for batches in unused if batches >= 1)
        is_many = left_out >= self.many and left_out > self.share * total
        if not is_many or windows < WINDOWS or each < 1:
            return OK
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


def _dropped(facts: StepFacts) -> int:
    """Windows zeroed before an optimizer stepped on them, of which a value was not finite."""
    if not facts.discarded:
        return 0
    zeroed = facts.record.micro_batches[: facts.applied_from]
    return sum(_is_nonfinite(facts, *span) for span in _spans(zeroed))


def _spans(micro_batches: list[MicroBatch]) -> Iterator[tuple[int, int]]:
    """Begin and end of each run of micro-batches whose gradients accumulate."""
    begins = [i for i, m in enumerate(micro_batches) if m.fresh or not i]
    return zip(begins, [*begins[1:], len(micro_batches)], strict=True)


def _is_nonfinite(facts: StepFacts, begin: int, end: int) -> bool:
    micro_batches = facts.record.micro_batches[begin:end]
    if any(m.claimed for m in micro_batches):
        return False
    losses = [number(m.loss) for m in micro_batches]
    norms = [number(e.norm) for e in facts.record.events if _is_clip(e, begin, end)]
    return any(value is not None and not math.isfinite(value) for value in (*losses, *norms))


def _is_clip(event: Event, begin: int, end: int) -> bool:
    return event.op == "clip_norm" and begin < event.after <= end
