"""loop.zeroed_every_microbatch"""

from __future__ import annotations

import math
from collections.abc import Mapping

from gradledger_monitor.model.findings import Outcome, Withdrawal
from gradledger_monitor.model.losses.repeated import has_batch_for_each
from gradledger_monitor.model.numbers import number
from gradledger_monitor.model.step_facts import StepFacts
from gradledger_monitor.model.unmeasured import without_backward
from gradledger_monitor.rules.definition import DEFAULTS
from gradledger_monitor.rules.loop.discarded_microbatches import (
    GUARDED,
    LastZeroed,
    WindowLengths,
    are_of_whole_losses,
)
from gradledger_monitor.rules.loop.dropped_windows import dropped_by_guard
from gradledger_monitor.rules.number_text import counted
from gradledger_monitor.rules.objective_names import counted_tokens
from gradledger_monitor.rules.rule import OK, Rule, Window, finding, not_measured
from gradledger_monitor.rules.state import declare

FIX = """\
for i, (x, y) in enumerate(loader):
    (loss_fn(model(x), y) / K).backward()
    if (i + 1) % K == 0:
        optimizer.step()
        optimizer.zero_grad()        # once per window, not before each backward"""


DIVIDED = 0.01  # relative tolerance of a balance of 1/K


class ZeroedEveryMicrobatch(Rule):
    """Gradients are zeroed between the micro-batches of one window.

    **What it sees**

    Several backwards before each step, with gradients absent or zero at the start of every one:
    in two windows in a row, or in one window whose remaining micro-batch is divided by K. If
    another optimizer has stepped on all of them, only if it is: this one may use every Kth batch.

    **Why it matters**

    Only the last micro-batch reaches the optimizer. The others cost time and are discarded. If
    the loss is divided by K, the step is also K times too small.

    **What to do**

    Move ``zero_grad()`` out of the inner loop, to the step.

    **When it is silent**

    The same data run again (LBFGS), also with another loss (``loop.discarded_microbatches`` states
    that); the parameters changed before the gradients were zeroed (SAM); gradients are moved to
    other buffers and back (``main_grad`` of Megatron); the earlier backward belongs to another
    optimizer, which may step later; another backward call, on data that the training DataLoader did
    not deliver, where this is the same as in the window before, while the data of the steps goes
    on, or no loss is divided (``loop.discarded_microbatches`` states that); some windows hold a
    single micro-batch, so the loop discards one now and then (a guard); windows of four lengths or
    more, some with a single micro-batch, which change from one to the next, and of which one
    micro-batch is applied, undivided: it is not measured, and the finding is withdrawn
    (``loop.dropped_windows`` counts what a guard drops); a loss or a norm was not finite in a
    micro-batch that was discarded, and finite in the one that was not.

    **Incidents**

    bytetriper/RAE#67, pytorch/torchtitan#3575, huggingface/accelerate#1299
    """

    points_at = ("zero_grad", "backward")
    inhibits = (
        "reduction.balance_off",
        "reduction.wrong_denominator",
        "reduction.world_size",
        "loop.step_every_microbatch",
        "loop.discarded_microbatches",
    )

    state = declare(_before=int, _single=bool, _last_zeroed=LastZeroed, _lengths=WindowLengths)

    def __init__(self, thresholds: Mapping[str, float] = DEFAULTS) -> None:
        super().__init__(thresholds)
        self._before = 0  # micro-batches of the last window, if each began without gradients
        self._single = False  # some window held one micro-batch
        self._last_zeroed = LastZeroed()
        self._lengths = WindowLengths()

    def after_gap(self) -> None:
        """The window before is missing: forget the last one that was evaluated."""
        self._before = 0

    def evaluate(self, window: Window) -> Outcome:
        """Every backward began without gradients: in two windows, or in one that divides by K."""
        facts = window.facts
        record = facts.record
        shared = all(
            m.claimed and not m.parameters_changed and not m.reaches_input
            for m in record.micro_batches
        )
        lost = record.micro_batches[:-1] if shared else facts.discarded
        if not record.micro_batches:  # it steps twice: the window before stays the last one
            return not_measured(without_backward(record))
        if self._lengths.show_guard(window):
            return Withdrawal("not_measured", GUARDED)
        total = len(record.micro_batches)
        only_one_applied = total > 1 and len(lost) == total - 1
        is_held = self._last_zeroed.is_held(lost, facts.applied)
        is_whole = are_of_whole_losses(lost, facts.applied)
        is_measured = (is_held or is_whole) and not has_batch_for_each(record)
        all_fresh = all(m.fresh for m in record.micro_batches)
        zeroed = only_one_applied and all_fresh and not is_measured
        before, self._before = self._before, total if zeroed else 0
        self._single = self._single or total == 1
        if not zeroed or self._single or _has_guard(facts):
            return OK
        if facts.moved_unknown is not None:
            return not_measured(facts.moved_unknown)
        if (shared or before != total) and not _divides_by(total, window):
            return OK
        tokens, held = counted_tokens(lost)
        return finding(
            "error",
            "Gradients are zeroed on every micro-batch",
            f"Each of the {total} backwards of this window started without gradients, so "
            f"{counted(len(lost), 'micro-batch')} ({held}) did not reach "
            f"{facts.optimizer_label if len(facts.run.optimizers) > 1 else 'the optimizer'}.",
            FIX,
            micro_batches=total,
            discarded=len(lost),
            discarded_tokens=tokens,
        )


def _divides_by(total: int, window: Window) -> bool:
    """Whether the one micro-batch that is applied was divided by the number of all."""
    objective = window.balance.objective
    return objective is not None and abs(objective.ledger.balance * total - 1) < DIVIDED


def _has_guard(facts: StepFacts) -> bool:
    """Whether the loop discarded what was not finite, and stepped on what was."""
    loss = number(facts.record.micro_batches[-1].loss)
    return bool(dropped_by_guard(facts)) and (loss is None or math.isfinite(loss))
