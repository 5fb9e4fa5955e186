"""scaler.update_per_microbatch"""

from __future__ import annotations

from gradledger_monitor.model.findings import Outcome
from gradledger_monitor.model.numbers import number
from gradledger_monitor.rules.definition import UNSTABLE
from gradledger_monitor.rules.number_text import significant
from gradledger_monitor.rules.rule import OK, Rule, Window, finding
from gradledger_monitor.rules.scaler.common import SCALER_IN_USE

FIX = """\
for loss in window:
    scaler.scale(loss).backward()
scaler.unscale_(optimizer)
scaler.step(optimizer)
scaler.update()                  # once per window"""


class UpdatePerMicrobatch(Rule):
    """``GradScaler.update()`` runs, or the scale changes, inside the window.

    **What it sees**

    An update between two backwards of one window; or micro-batches of one window with different
    scales.

    **Why it matters**

    The gradients of the window no longer share one scale. If ``unscale_`` also runs on each
    micro-batch (PyTorch refuses a second call without ``update()``), the k-th of K
    micro-batches is divided by the scale K-k+1 times, so only the last one counts.

    **What to do**

    Call ``unscale_``, ``step`` and ``update`` once, at the end of the window.

    **When it is silent**

    The update follows the step, before the next backward.

    **Incidents**

    microsoft/Swin-Transformer#311, hiyouga/LlamaFactory#77, huggingface/accelerate#641
    """

    points_at = ("update",)
    inhibits = (
        "reduction.balance_off",
        "reduction.wrong_denominator",
        *UNSTABLE,
        "scaler.unscale_mid_window",
        "loop.zeroed_every_microbatch",
    )

    precondition = SCALER_IN_USE

    def evaluate(self, window: Window) -> Outcome:
        """An update, or a change of scale, between two backwards of the window."""
        record, start = window.facts.record, window.facts.applied_from
        total = len(record.micro_batches)
        inside = [e.after for e in window.facts.own_calls("update") if start < e.after < total]
        scales = _scales(window)
        if not inside and len(scales) < 2:
            return OK
        return finding(
            "error",
            "The loss scale is updated inside the window",
            _summary(inside, scales, total),
            FIX,
            update_after=inside[:16],
            scales=sorted(scales, key=str)[:16],
            micro_batches=total,
        )


def _scales(window: Window) -> set[float | None]:
    """The scales of the window, if one scaler has several."""
    by_scaler: dict[int, set[float | None]] = {}
    for _, micro_batch in window.facts.applied:
        if micro_batch.scale is not None:
            by_scaler.setdefault(micro_batch.scaler, set()).add(number(micro_batch.scale))
    return max(by_scaler.values(), key=len, default=set())


def _summary(inside: list[int], scales: set[float | None], total: int) -> str:
    values = ", ".join(significant(s) for s in sorted(scales, key=str) if s is not None)
    different = f"The micro-batches of the window have different loss scales: {values}."
    if not inside:
        return different
    event = f"GradScaler.update() ran after micro-batch {inside[0]} of {total}"
    if len(scales) > 1:
        return f"{event}. {different}"
    return f"{event}, so the gradients of the window may not share one scale."
