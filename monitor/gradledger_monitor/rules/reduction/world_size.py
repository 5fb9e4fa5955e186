"""reduction.world_size"""

from __future__ import annotations

from gradledger_monitor.findings import Outcome
from gradledger_monitor.rules import effects
from gradledger_monitor.rules.base import Rule, Window, finding, not_applicable
from gradledger_monitor.rules.reduction.common import balance, unless

FIX = """\
# DDP and FSDP average over ranks: a sum over all ranks' tokens must be multiplied back
tokens = global_sum(tokens_in_window)            # over all ranks
loss = F.cross_entropy(logits, labels, reduction="sum") * world_size / tokens"""


class WorldSize(Rule):
    """The world size is missing from the normalisation, or is in it once too often.

    **What it sees**

    With R ranks, the balance is 1/R or R where it should be 1.

    **Why it matters**

    DDP and FSDP divide the summed gradient by the number of ranks. A loss that is already divided
    by the tokens of all ranks is then R times too small; one that is multiplied by R without that
    is R times too large. The result changes with the number of GPUs.

    **What to do**

    Either divide by the rank's share, or multiply the globally normalised sum by the world size.

    **When it is silent**

    One rank; ``sum / N * R`` under averaging DDP, which is right; the run declares ``scale``.

    **Incidents**

    meta-pytorch/torchtune#2172, ultralytics/ultralytics#18616, facebookresearch/fairseq2#430
    """

    def judge(self, window: Window) -> Outcome:
        """B = R or 1/R."""
        ranks = window.facts.run.world_size
        if ranks == 1:
            return not_applicable("one rank")
        calm = unless(window, "world")
        if calm is not None:
            return calm
        small = balance(window) < 1
        size = "small" if small else "large"
        return finding(
            "warning",
            f"The gradient is {ranks} times too {size}: the world size",
            f"The balance over {ranks} ranks is {balance(window):.4g}. The ranks' gradients are "
            f"averaged, and the loss is {'divided' if small else 'multiplied'} by the world size "
            f"besides. {effects.of_factor(balance(window), window.facts.optimizer_name)}.",
            FIX,
            balance=round(balance(window), 6),
            world_size=ranks,
            factor=round(balance(window), 6),
        )
