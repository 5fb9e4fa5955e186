"""scaler.clip_before_unscale"""

from __future__ import annotations

import math

from gradledger_monitor.ingest.schema import Event
from gradledger_monitor.model.findings import Outcome
from gradledger_monitor.model.numbers import number
from gradledger_monitor.model.step_facts import CLIP_CALLS
from gradledger_monitor.rules.rule import OK, Rule, Window, finding
from gradledger_monitor.rules.scaler.common import SCALER_IN_USE

FIX = """\
scaler.unscale_(optimizer)
torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
scaler.step(optimizer)
scaler.update()"""


class ClipBeforeUnscale(Rule):
    """The gradients are clipped while they are still multiplied by the loss scale.

    **What it sees**

    A clip on this optimizer's parameters before ``scaler.unscale_`` in a scaled window; the
    gradient sample shows that the gradients still carried the scale at that moment.

    **Why it matters**

    The threshold is compared with a norm that is tens of thousands of times too large, so
    clipping always engages; after unscaling, the update is that much too small. With SGD the
    run freezes, with Adam every step is normalised to one length and the clip means nothing.

    **What to do**

    Call ``scaler.unscale_(optimizer)`` before clipping.

    **When it is silent**

    ``unscale_`` ran first, or the gradients were unscaled by hand; the limit is infinite, which
    only measures the norm.

    **Incidents**

    Lightning-AI/pytorch-lightning#9330, pytorch/examples#1196, TorchSSL#59,
    milesial/Pytorch-UNet#470"""

    inhibits = ("norm.*", "clip.*", "reduction.*")

    precondition = SCALER_IN_USE

    def evaluate(self, window: Window) -> Outcome:
        """A finite clip that no unscale came before."""
        scale = window.facts.scale or 1.0
        for event in window.facts.record.events:
            if event.op == "unscale" and event.own:
                return OK
            if event.op in CLIP_CALLS and event.own and _is_scaled(event, scale):
                return _report(event, scale, window)
        return OK


def _is_scaled(event: Event, scale: float) -> bool:
    """A finite limit, applied while the sample still shows the gradients as backward left them."""
    limit, factor = number(event.limit), number(event.factor)
    if scale == 1 or event.after == 0 or limit is None or math.isinf(limit):
        return False
    return factor is None or factor * scale > 2


def _report(event: Event, scale: float, window: Window) -> Outcome:
    norm, limit = number(event.norm), number(event.limit)
    seen = (
        ""
        if norm is None
        else f" It saw a norm of {norm:,.4g}; without the scale that is {norm / scale:,.4g}."
    )
    return finding(
        "error",
        "Gradients are clipped while still scaled",
        f"The clip to {limit:g} runs before scaler.unscale_, on gradients multiplied by "
        f"{scale:,.6g}.{seen} After unscaling, a norm of {(limit or 0) / scale:.3g} is left.",
        FIX,
        scale=scale,
        limit=limit,
        norm_seen=norm,
        norm_true=None if norm is None else norm / scale,
        optimizer=window.facts.optimizer_name,
    )
