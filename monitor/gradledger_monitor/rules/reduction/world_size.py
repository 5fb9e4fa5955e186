"""reduction.world_size"""

from __future__ import annotations

from gradledger_monitor.model.findings import Outcome
from gradledger_monitor.rules import effects
from gradledger_monitor.rules.reduction.common import (
    balance,
    declared,
    factor,
    no_mistake,
    shows,
)
from gradledger_monitor.rules.rule import OK, Precondition, Rule, Window, finding, not_applicable

FIX = """\
# DDP and FSDP average over ranks: a sum over all ranks' tokens must be multiplied back
tokens = global_sum(tokens_in_window)            # over all ranks
loss = F.cross_entropy(logits, labels, reduction="sum") * world_size / tokens"""

FIX_BY_HAND = """\
# where each rank's loss is normalised by its own share: divide by the world size, once
dist.all_reduce(p.grad)
p.grad /= world_size
# where the loss is divided by the tokens of all ranks: leave the sum as it is
dist.all_reduce(p.grad)"""


def _no_mistake_of_ranks(window: Window) -> Outcome | None:
    """The outcome for one rank, or where the balance shows no mistake."""
    if window.facts.run.world_size == 1:
        return not_applicable("one rank")
    return no_mistake(window)


BALANCE_OFF_BY_RANKS = Precondition("the balance of several ranks is off", _no_mistake_of_ranks)


class WorldSize(Rule):
    """The world size is missing from the normalisation, or is in it once too often.

    **What it sees**

    With R ranks, the balance is 1/R or R where it should be 1. Where a constant R in front of the
    loss explains it, that may be a weight that is meant: this is told as information.

    **Why it matters**

    DDP and FSDP divide the summed gradient by the number of ranks. A loss that is already divided
    by the tokens of all ranks is then R times too small; one that is multiplied by R without that
    is R times too large. The result changes with the number of GPUs. A loop that all-reduces by
    itself makes the same mistake where it never divides by R, or once too often.

    **What to do**

    Either divide by the rank's share, or multiply the globally normalised sum by the world size.

    **When it is silent**

    One rank; ``sum / N * R`` under averaging DDP, which is right; the run declares ``scale``.

    **Incidents**

    meta-pytorch/torchtune#2172, ultralytics/ultralytics#18616, facebookresearch/fairseq2#430
    """

    precondition = BALANCE_OFF_BY_RANKS

    def evaluate(self, window: Window) -> Outcome:
        """B = R or 1/R."""
        ranks = window.facts.run.world_size
        if not shows(window, "world", "world_or_weight"):
            return OK
        if window.balance.pattern == "world_or_weight":
            return _ambiguous(window, ranks)
        by = factor(window)
        size = "small" if by < 1 else "large"
        by_hand = window.facts.all_reduce_factor
        return finding(
            "warning",
            f"The gradient is {ranks} times too {size}: the world size",
            f"The balance over {ranks} ranks is {balance(window):.4g}. {_how(window)} "
            f"{effects.of_factor(by, window.facts)}.",
            FIX if by_hand is None else FIX_BY_HAND,
            balance=round(balance(window), 6),
            world_size=ranks,
            factor=round(by, 6),
            combined_by_hand=None if by_hand is None else round(by_hand, 6),
        )


def _ambiguous(window: Window, ranks: int) -> Outcome:
    return finding(
        "info",
        f"The loss is multiplied by {ranks}, which is also the number of ranks",
        f"The balance over {ranks} ranks is {balance(window):.4g}, and a constant in front of the "
        "loss explains it. Is that the world size, then it is there once too often: the ranks' "
        "gradients are averaged, and each rank's loss is a mean already. Is it a weight that is "
        f"meant, then declare scale={declared(window) * ranks:.4g}. "
        f"{effects.of_factor(factor(window), window.facts)}.",
        FIX,
        balance=round(balance(window), 6),
        world_size=ranks,
        factor=round(factor(window), 6),
    )


def _how(window: Window) -> str:
    by_hand, by = window.facts.all_reduce_factor, factor(window)
    if by_hand is None:
        done = "divided" if by < 1 else "multiplied"
        return (
            f"The ranks' gradients are averaged, and the loss is {done} by the world size besides."
        )
    return (
        f"The loop multiplies the sum of the ranks' gradients by {by_hand:.4g}; "
        f"{by_hand / by:.4g} would be right for this loss."
    )
