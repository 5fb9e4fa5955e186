"""loop.clip_every_microbatch"""

from __future__ import annotations

import math

from gradledger_monitor.model.clipping import CLIP_CALLS, clip_coefficient
from gradledger_monitor.model.findings import Outcome
from gradledger_monitor.model.numbers import number
from gradledger_monitor.rules.balance.evidence import Near
from gradledger_monitor.rules.number_text import counted, percent, significant
from gradledger_monitor.rules.reduction.common import varies
from gradledger_monitor.rules.rule import OK, Rule, Window, finding, not_applicable, not_measured

FIX = """\
if (i + 1) % K == 0:
    torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    optimizer.step()
    optimizer.zero_grad()"""


LEAST_PERCENTAGE = 1e-4


class ClipEveryMicrobatch(Rule):
    """Gradients are clipped before the last backward of the window, on a partial sum.

    **What it sees**

    A clip by norm or by value between two backwards of one window. Or the loop itself scales the
    gradients down between backwards, by factors that differ, so that the weights of the
    micro-batches and the balance do, too.

    **Why it matters**

    Each clip scales the gradients of all earlier micro-batches again, so the weights depend on
    the order of the data. The threshold is compared with a partial sum, not with the gradient
    of the step.

    **What to do**

    Clip once, after the last backward.

    **When it is silent**

    The clip follows the last backward; its limit is infinite, so that it only measures the
    norm. The loop scales the gradients down by one factor, as in a moving average, or so that all
    weights are equal, as in a running mean; or it limits single values by hand.

    **Incidents**

    huggingface/transformers#986, facebookresearch/lingua#59, huggingface/diffusers#721
    """

    points_at = ("clip_norm", "clip_value", "backward")
    inhibits = ("reduction.balance_off",)

    def evaluate(self, window: Window) -> Outcome:
        """A finite clip before the last backward of the window."""
        facts = window.facts
        record = facts.record
        if "clip_norm" in record.missing:
            return not_measured(record.missing["clip_norm"])
        factors = _factors(window)
        if factors:
            return _by_hand(factors, len(record.micro_batches))
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


def _factors(window: Window) -> list[float]:
    """What the loop itself scales the gradients by between backwards, if it may be a clip by hand.

    Factors that follow from the data: they differ, so that the balance does, and leave unequal
    weights. A moving average has one factor, and a running mean leaves equal weights.
    """
    facts, objective = window.facts, window.balance.objective
    factors = [f for _, m in facts.applied if (f := number(m.rescaled)) is not None]
    if not factors or max(factors) > 1 or objective is None or not facts.ledger:
        return []
    near = Near(factors[0], facts.tolerance)
    one = len(factors) > 1 and all(map(near, factors))
    even = objective.reading.is_even(facts.tolerance)
    return [] if one or even or not varies(window) else factors


def _by_hand(factors: list[float], total: int) -> Outcome:
    shrunk, times = math.prod(factors), counted(len(factors), "time")
    least, most = significant(min(factors)), significant(max(factors))
    by = " and ".join(map(significant, factors)) if len(factors) < 3 else f"{least} to {most}"
    return finding(
        "warning",
        "Gradients are scaled down before the last backward",
        f"The loop itself multiplies the gradients by {by} between the {total} backwards of this "
        f"window, {times}, and by other factors in other windows. A clip by hand of the partial "
        "sums does this. The first micro-batch has "
        f"{_part(shrunk)} of its size when the last one is added.",
        FIX,
        times_scaled=len(factors),
        micro_batches=total,
        first_microbatch_left=shrunk,
    )


def _shrunk(shrunk: float) -> str:
    if shrunk == 1:
        return ""
    return (
        f" Clips by norm scaled the first micro-batch to {_part(shrunk)} of its size before the "
        "last one was added."
    )


def _part(share: float) -> str:
    """A percentage, or the number itself if that would be 0%."""
    return percent(share) if share >= LEAST_PERCENTAGE else significant(share)
