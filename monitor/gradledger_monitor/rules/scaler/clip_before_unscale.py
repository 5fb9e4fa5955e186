"""scaler.clip_before_unscale"""

from __future__ import annotations

import math

from gradledger_monitor.ingest.schema import Event
from gradledger_monitor.model.clipping import CLIP_CALLS
from gradledger_monitor.model.findings import Outcome
from gradledger_monitor.model.numbers import number
from gradledger_monitor.rules.definition import SMALL_STEPS, UNSTABLE_NORMS
from gradledger_monitor.rules.number_text import significant
from gradledger_monitor.rules.rule import OK, Precondition, Rule, Window, finding
from gradledger_monitor.rules.scaler.common import SCALER_IN_USE, bounded, residual, static_scale

# Of the scale. GradScaler starts at 65,536, and clips are mostly to norms near 1: a limit that is
# not multiplied by the scale stays below, unless the scale has collapsed.
SCALED_LIMIT = 0.1
# Of a clip by value: single values are smaller than a norm, and so are the limits in use.
SCALED_LIMIT_OF_VALUES = 0.001

FIX = """\
scaler.unscale_(optimizer)
torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
scaler.step(optimizer)
scaler.update()"""

FIX_OF_STATIC_SCALE = """\
for p in model.parameters():
    if p.grad is not None:
        p.grad.div_(scale)                                            # before the clip
torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
optimizer.step()"""


def of_values(fix: str) -> str:
    """The fix of a clip by value."""
    return fix.replace("clip_grad_norm_", "clip_grad_value_").replace("max_norm", "clip_value")


def _no_scale(window: Window) -> Outcome | None:
    """The outcome where no loss is scaled, by a GradScaler or by a constant."""
    return None if static_scale(window.facts) is not None else SCALER_IN_USE.unmet(window)


LOSS_IS_SCALED = Precondition("the loss is scaled", _no_scale)


class ClipBeforeUnscale(Rule):
    """The gradients are clipped while they are still multiplied by the loss scale.

    **What it sees**

    A clip on the parameters of this optimizer before ``GradScaler.unscale_`` in a scaled
    window. If a gradient sample exists, it shows that the gradients still carried the scale at
    that moment.

    **Why it matters**

    The threshold is compared with a norm that is tens of thousands of times too large, so
    clipping nearly always engages, and after unscaling the update is that much too small. With
    SGD the parameters hardly change. With Adam every step has about the same length, and the
    threshold has no meaning.

    **What to do**

    Call ``scaler.unscale_(optimizer)`` before clipping, or divide by a static scale before it.

    **When it is silent**

    ``unscale_`` ran first, or the gradients were unscaled by hand; the limit is infinite, so
    that the clip only measures the norm; the limit is at least a tenth of the scale (of a clip by
    value: a thousandth), as one that is multiplied by it, too. A static scale below 16, or one
    that equals a count of the window, may be no loss scale.

    **Incidents**

    Lightning-AI/pytorch-lightning#9330, pytorch/examples#1196, TorchSSL#59,
    milesial/Pytorch-UNet#470
    """

    points_at = ("clip_norm", "clip_value")
    inhibits = (*UNSTABLE_NORMS, *SMALL_STEPS)

    precondition = LOSS_IS_SCALED

    def evaluate(self, window: Window) -> Outcome:
        """A finite clip before any unscale."""
        static = static_scale(window.facts)
        if static is not None:
            return _before_division(window, static)
        scale = window.facts.scale or 1.0
        for event in window.facts.record.events:
            if event.op == "unscale" and event.own:
                return OK
            if event.op in CLIP_CALLS and event.own and _is_scaled(event, scale):
                return _before_unscale(event, scale, window)
        return OK


def _is_scaled(event: Event, scale: float) -> bool:
    """Whether a finite clip ran while the gradients still carried the loss scale."""
    limit, factor = number(event.limit), number(event.factor)
    if scale == 1 or event.after == 0 or limit is None or math.isinf(limit):
        return False
    lowest = SCALED_LIMIT if event.op == "clip_norm" else SCALED_LIMIT_OF_VALUES
    if limit >= lowest * scale:
        return False
    return factor is None or factor * scale > 2


def _before_division(window: Window, scale: float) -> Outcome:
    """A clip of gradients that a loop without a GradScaler divides by its constant later."""
    last = len(window.facts.record.micro_batches)
    for event in (e for e in window.facts.record.events if e.op in CLIP_CALLS and e.own):
        unchanged = number(event.factor) is not None  # of the gradients since backward
        if event.after == last and unchanged and _is_scaled(event, scale):
            norm, limit = number(event.norm), number(event.limit)
            summary = (
                f"The clip to {limit:g} ran on gradients multiplied by {significant(scale)}, by "
                f"which the loop divides them after it.{_measured(norm, scale)} After the "
                f"division, {bounded(event)} at most {(limit or 0) / scale:.3g}."
            )
            title = "Gradients are clipped before the loss scale is divided out"
            return _report(event, scale, window, title, summary, FIX_OF_STATIC_SCALE)
    return OK


def _before_unscale(event: Event, scale: float, window: Window) -> Outcome:
    norm, limit = number(event.norm), number(event.limit)
    left = residual(window.facts)
    at_most = f"{bounded(event)} at most {(limit or 0) / scale:.3g}."
    if window.facts.own_calls("unscale") or window.facts.own_calls("scaler_step"):
        after = f"After unscaling, {at_most}"
    elif left is not None and left >= 2:
        after = "Nothing unscales them before the step."
    else:  # the loop may divide by hand
        after = f"Without the scale, {at_most}"
    summary = (
        f"The clip to {limit:g} ran before GradScaler.unscale_, on gradients multiplied by "
        f"{significant(scale)}.{_measured(norm, scale)} {after}"
    )
    return _report(event, scale, window, "Gradients are clipped before unscale_", summary, FIX)


def _report(
    event: Event, scale: float, window: Window, title: str, summary: str, fix: str
) -> Outcome:
    norm = number(event.norm)
    if event.op == "clip_value":
        fix = of_values(fix)
    return finding(
        "error",
        title,
        summary,
        fix,
        scale=scale,
        limit=number(event.limit),
        norm_seen=norm,
        norm_true=None if norm is None else norm / scale,
        optimizer=window.facts.optimizer_name,
    )


def _measured(norm: float | None, scale: float) -> str:
    if norm is None:
        return ""
    return (
        f" It measured a norm of {significant(norm)}, which is {significant(norm / scale)} "
        "without the scale."
    )
