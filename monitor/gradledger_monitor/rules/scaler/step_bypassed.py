"""scaler.step_bypassed"""

from __future__ import annotations

import math

from gradledger_monitor.ingest.schema import Event
from gradledger_monitor.model.clipping import CLIP_CALLS
from gradledger_monitor.model.findings import Outcome
from gradledger_monitor.model.numbers import number
from gradledger_monitor.model.step_facts import StepFacts
from gradledger_monitor.rules.definition import UNSTABLE
from gradledger_monitor.rules.gradient_scale_effects import constant_factor_effect
from gradledger_monitor.rules.number_text import significant
from gradledger_monitor.rules.rule import OK, Rule, Window, finding, not_measured
from gradledger_monitor.rules.scaler.common import SCALER_IN_USE, bounded, has_nan_loss, residual

FIX = """\
scaler.step(optimizer)      # not optimizer.step()
scaler.update()"""


class StepBypassed(Rule):
    """The optimizer steps on gradients that are still multiplied by the loss scale.

    **What it sees**

    The loss was scaled, but ``optimizer.step()`` was called directly, and the gradient sample
    shows that nothing unscaled the gradients before it. Or their norm is not finite, under a loss
    that is not NaN.

    **Why it matters**

    The gradients are too large by the loss scale, 65,536 at the start. Nothing checks them for
    overflow, and the scale does not adapt. SGD usually diverges. Adam cancels the factor and
    the loss still falls, but epsilon and clipping thresholds no longer have their meaning.

    **What to do**

    Step through the scaler: ``scaler.step(optimizer)``, then ``scaler.update()``.

    **When it is silent**

    The gradients were unscaled by ``GradScaler.unscale_`` or by hand; the scaler is disabled; a
    fused optimizer unscales inside its kernel.

    **Incidents**

    IAHispano/Applio#860
    """

    points_at = ("step",)
    inhibits = (
        *("reduction.balance_off", "reduction.wrong_denominator"),
        # of too large steps; a call in the wrong order is another mistake
        *("scaler.missing_update", "scaler.skipped_steps", "scaler.collapse"),
        "scaler.all_grads_zero",
        *UNSTABLE,
    )

    precondition = SCALER_IN_USE

    def evaluate(self, window: Window) -> Outcome:
        """No scaler step in the window, and the gradients still carry the scale."""
        facts, record = window.facts, window.facts.record
        if record.skipped or facts.own_calls("scaler_step"):
            return OK
        left = residual(facts)
        if _overflows(facts):
            return finding(
                "error",
                "GradScaler.step is bypassed, and the gradients are not finite",
                "optimizer.step() ran without GradScaler.step, which skips such a step: the loss "
                f"was multiplied by {significant(facts.scale or 1.0)} and was not NaN, and the "
                "norm of its gradients is not finite.",
                FIX,
                scale=facts.scale,
            )
        if left is None:
            return not_measured(record.missing.get("post_factor", "no gradient sample"))
        if left < 2:
            return OK
        state = _state(left, facts)
        return finding(
            "error",
            "The optimizer steps on scaled gradients",
            f"optimizer.step() ran without GradScaler.step on gradients that {state}.",
            FIX,
            factor=left,
            scale=facts.scale,
        )


def _overflows(facts: StepFacts) -> bool:
    """Whether gradients are not finite under a loss that is not NaN: the scale may be the reason.

    ``norm.nonfinite`` reports a loop that calls ``unscale_`` and not ``step``.
    """
    norm = number(facts.record.norm)
    is_finite = norm is None or math.isfinite(norm)
    return not (is_finite or has_nan_loss(facts) or facts.own_calls("unscale"))


def _state(left: float, facts: StepFacts) -> str:
    """What the scale has made of the gradients. A clip of them leaves another factor."""
    last = len(facts.record.micro_batches)
    clips = [e for op in CLIP_CALLS for e in facts.own_calls(op) if e.after == last and _bounds(e)]
    clip = clips[-1] if clips else None
    if clip is None:
        return (
            f"still carry a factor of {significant(left)} from the loss scale, so they are that "
            f"much too large. {constant_factor_effect(left, facts)}"
        )
    return (
        f"nothing unscaled. The clip to {number(clip.limit):g} ran while they carried a factor of "
        f"{significant(left)} from the loss scale, so {bounded(clip)} at most that limit, whatever "
        "the gradient without the scale is"
    )


def _bounds(clip: Event) -> bool:
    """Whether a clip has a limit, which it did not leave the gradients below without a change."""
    limit, norm = number(clip.limit), number(clip.norm)
    return limit is not None and math.isfinite(limit) and (norm is None or norm > limit)
