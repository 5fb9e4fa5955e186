"""scaler.two_scalers"""

from __future__ import annotations

import math

from gradledger_monitor.model.findings import Outcome, Severity
from gradledger_monitor.model.numbers import number
from gradledger_monitor.rules.number_text import significant
from gradledger_monitor.rules.rule import OK, Rule, Window, finding
from gradledger_monitor.rules.scaler.common import SCALER_IN_USE

FIX = """\
# for each micro-batch:
scaler.scale(first_loss).backward()       # one scaler for all losses that are added up
scaler.scale(second_loss).backward()
# after the last micro-batch of the window:
scaler.step(optimizer)
scaler.update()"""


class TwoScalers(Rule):
    """Two ``GradScaler`` objects take part in one step.

    **What it sees**

    The losses whose gradients the step applies were scaled by different ``GradScaler`` objects; or
    by one, while another unscales or steps. It is an error if their scales differ at the step, and
    a warning as long as they are equal: each scaler adapts its own scale.

    **Why it matters**

    ``unscale_`` and ``step`` divide all gradients by one scale. What another scaler multiplied
    weighs too much or too little by the ratio of the two scales. If both unscale, the gradients
    are divided twice.

    **What to do**

    Use one ``GradScaler`` for all losses that one optimizer trains on, also if several optimizers
    share a backward.

    **When it is silent**

    A scaler for each optimizer, each of which has its own backwards (a GAN); a new scaler from one
    window to the next (another rule).

    **Incidents**

    textbook (a scaler for each loss)
    """

    points_at = ("scaler_step", "unscale", "scaled_backward")
    inhibits = ("scaler.double_unscale", "scaler.reset", "scaler.step_bypassed")

    precondition = SCALER_IN_USE

    def evaluate(self, window: Window) -> Outcome:
        """The scalers of the applied micro-batches, and of the calls on this optimizer."""
        facts = window.facts
        scales: dict[int, float | None] = {
            m.scaler: number(m.scale) for _, m in facts.applied if m.scale is not None
        }
        calls = {
            event.scaler
            for op in ("unscale", "scaler_step")
            for event in facts.own_calls(op)
            if event.after >= len(facts.record.micro_batches)
        }
        if not scales or len(scales.keys() | calls) < 2:
            return OK
        numbers = [value for value in scales.values() if value is not None]
        values = {value for value in numbers if not math.isnan(value)}
        equal = len(values) == 1 and len(scales) > 1 and not any(map(math.isnan, numbers))
        severity: Severity = "warning" if equal else "error"
        return finding(
            severity,
            "Two GradScaler objects take part in one step",
            f"{_roles(scales, calls)} {_consequence(sorted(values), equal, len(scales) > 1)}",
            FIX,
            scalers=sorted(scales.keys() | calls),
            scales=sorted(values),
        )


def _roles(scales: dict[int, float | None], calls: set[int]) -> str:
    if len(scales) > 1:
        by_number = sorted(scales.items())
        texts = [f"{significant(scale or 0.0)} (scaler {number})" for number, scale in by_number]
        return f"The losses of this window were multiplied by {' and '.join(texts)}."
    (scaling,) = scales
    others = ", ".join(str(number) for number in sorted(calls - {scaling}))
    return f"Scaler {scaling} multiplied the loss, and scaler {others} unscaled or stepped."


def _consequence(values: list[float], equal: bool, several: bool) -> str:
    if equal:
        return (
            "The scales are still equal. Each scaler adapts its own: as soon as they differ, the "
            "losses do not have the weights that the loop gives them."
        )
    if several:
        ratio = values[-1] / values[0] if values and values[0] else math.inf
        size = f"one counts {significant(ratio)} times too much or too little."
        return (
            "One scaler divides all gradients by its own scale, so the losses do not have the "
            f"weights that the loop gives them{': ' + size if math.isfinite(ratio) else '.'}"
        )
    return "The gradients are divided by the scale of a scaler that did not multiply the loss."
