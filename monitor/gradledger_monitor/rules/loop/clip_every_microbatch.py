"""loop.clip_every_microbatch"""

from __future__ import annotations

import math

from gradledger_monitor.model.findings import Outcome
from gradledger_monitor.model.numbers import number
from gradledger_monitor.model.step_facts import CLIP_CALLS, clip_coefficient
from gradledger_monitor.rules.rule import OK, Rule, Window, finding, not_applicable, not_measured

FIX = """\
if (i + 1) % K == 0:
    torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    optimizer.step()
    optimizer.zero_grad()"""


class ClipEveryMicrobatch(Rule):
    """Gradients are clipped inside the window, on the partial sum.

    **What it sees**

    A clip by norm or value between two backwards of one window.

    **Why it matters**

    Early micro-batches are shrunk again with each clip, late ones once: the weights depend on the
    order of the data. What the threshold is compared with is not the gradient of the step.

    **What to do**

    Clip once, after the last backward.

    **When it is silent**

    The clip follows the last backward; its limit is infinite, which only measures.

    **Incidents**

    huggingface/transformers#986, facebookresearch/lingua#59, huggingface/diffusers#721
    """

    inhibits = ("clip.*",)

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
            "Gradients are clipped on every micro-batch",
            f"The clip to {number(inside[0].limit):g} runs after micro-batch "
            f"{inside[0].after} of {total}, on the partial sum: the first micro-batch is shrunk to "
            f"{shrunk:.3g} of its size before the last one is added.",
            FIX,
            clips_inside=len(inside),
            micro_batches=total,
            limit=number(inside[0].limit),
            first_microbatch_left=shrunk,
        )
