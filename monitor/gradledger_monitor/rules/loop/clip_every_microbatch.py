"""loop.clip_every_microbatch"""

from __future__ import annotations

import math

from gradledger_monitor.model.clipping import CLIP_CALLS, clip_coefficient
from gradledger_monitor.model.findings import Outcome
from gradledger_monitor.model.numbers import number
from gradledger_monitor.rules.number_text import percent
from gradledger_monitor.rules.rule import OK, Rule, Window, finding, not_applicable, not_measured

FIX = """\
if (i + 1) % K == 0:
    torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    optimizer.step()
    optimizer.zero_grad()"""


class ClipEveryMicrobatch(Rule):
    """Gradients are clipped before the last backward of the window, on a partial sum.

    **What it sees**

    A clip by norm or by value between two backwards of one window.

    **Why it matters**

    Each clip scales the gradients of all earlier micro-batches again, so the weights depend on
    the order of the data. The threshold is compared with a partial sum, not with the gradient
    of the step.

    **What to do**

    Clip once, after the last backward.

    **When it is silent**

    The clip follows the last backward; its limit is infinite, so that it only measures the
    norm.

    **Incidents**

    huggingface/transformers#986, facebookresearch/lingua#59, huggingface/diffusers#721
    """

    points_at = ("clip_norm", "clip_value")

    def evaluate(self, window: Window) -> Outcome:
        """A finite clip before the last backward of the window."""
        facts = window.facts
        record = facts.record
        if "clip_norm" in record.missing:
            return not_measured(record.missing["clip_norm"])
        clips = [event for event in record.events if event.own and event.op in CLIP_CALLS]
        if not clips:
            return OK if window.past else not_applicable("the loop does not clip")
        total = len(record.micro_batches)
        inside = [
            e
            for e in clips
            if facts.applied_from < e.after < total and math.isfinite(number(e.limit) or math.inf)
        ]
        if not inside:
            return OK
        shrunk = math.prod(clip_coefficient(e) for e in inside if e.op == "clip_norm")
        return finding(
            "warning",
            "Gradients are clipped before the last backward",
            f"The clip to {number(inside[0].limit):g} ran after micro-batch {inside[0].after} of "
            f"{total}, on a partial sum of the gradients.{_shrunk(shrunk)}",
            FIX,
            clips_inside=len(inside),
            micro_batches=total,
            limit=number(inside[0].limit),
            first_microbatch_left=shrunk,
        )


def _shrunk(shrunk: float) -> str:
    if shrunk == 1:
        return ""
    return (
        f" Clips by norm scaled the first micro-batch to {percent(shrunk)} of its size before "
        "the last one was added."
    )
