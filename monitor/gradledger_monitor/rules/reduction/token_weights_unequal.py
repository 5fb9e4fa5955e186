"""reduction.token_weights_unequal"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping

from gradledger_monitor.model.findings import Outcome, Severity
from gradledger_monitor.model.objectives import Objective
from gradledger_monitor.model.step_facts import StepFacts
from gradledger_monitor.model.token_ledger import Entry, total
from gradledger_monitor.rules.balance_diagnosis import OWN_LOSSES, PARTS_OR_TASKS, weightless
from gradledger_monitor.rules.definition import DEFAULTS, Parameter
from gradledger_monitor.rules.rule import (
    OK,
    Rule,
    Window,
    as_count,
    deferred_finding,
    finding,
    not_applicable,
    not_measured,
)
from gradledger_monitor.rules.state import declare

FIX = """\
# before: the mean of micro-batch means
loss = F.cross_entropy(logits, labels) / K

# after: the sum over tokens, divided by the tokens of the whole window (and of all ranks)
tokens = sum((labels != -100).sum() for _, labels in window)
loss = F.cross_entropy(logits, labels, reduction="sum") / tokens   # under DDP: * world_size"""


class TokenWeightsUnequal(Rule):
    """Tokens of one optimizer step get different weights.

    **What it sees**

    The weight that each micro-batch's tokens get in the applied gradient, on every rank. The
    misallocation d is the share of gradient weight that sits on the wrong tokens: half the sum
    of (n_t / N) * |rho_t - 1|, where rho_t is a token's weight relative to the fair one.

    **Why it matters**

    A mean of micro-batch means gives every micro-batch the same say, however few tokens it holds:
    tokens of short micro-batches count more than tokens of long ones. The gradient points in
    another direction than the one of the same data in one large batch; no learning rate mends it.

    **What to do**

    Sum the loss over tokens, and divide by the number of tokens in the whole window, over all
    ranks. In transformers this came with 4.46 (``num_items_in_batch``).

    **When it is silent**

    All micro-batches hold equally many tokens (then the mean of means is right); the loss itself
    weighs the tokens of one micro-batch differently (advantages, a mean per sequence); each
    backward is a loss of its own (a critic's real and fake); the run declares
    ``contract="sequence"`` or ``"sample"``.

    **Incidents**

    huggingface/transformers#34191, unslothai/unsloth#1134, meta-pytorch/torchtune#1875,
    Lightning-AI/pytorch-lightning#21386, karpathy/nanochat#59, pytorch/torchtitan#2206
    """

    error = Parameter(0.05, "misallocation that is an error", most=1.0)
    warning = Parameter(0.01, "misallocation that is a warning", most=1.0)
    recent = Parameter(50, "windows over which it is averaged")

    state = declare(_recent=deque[float])

    def __init__(self, thresholds: Mapping[str, float] = DEFAULTS) -> None:
        super().__init__(thresholds)
        self._recent: deque[float] = deque(maxlen=self.recent)

    def evaluate(self, window: Window) -> Outcome:
        """Even under some honest reading, or the misallocation of the plainest one."""
        facts = window.facts
        if facts.unmeasured:
            return not_measured(facts.unmeasured)
        if facts.run.contract in ("sequence", "sample"):
            return not_applicable(f"the run declares one weight per {facts.run.contract}")
        if facts.weighted_inside:
            return not_applicable("the loss itself weighs the tokens of one micro-batch apart")
        if facts.separate_losses:
            return not_applicable(OWN_LOSSES)
        reading = facts.objective
        if reading is None:
            return not_measured(weightless(facts))
        scale = facts.run.declared_scale or 1.0
        if reading.name == "part" and not reading.is_fair(facts.tolerance, scale):
            return not_measured(PARTS_OR_TASKS)
        even = reading.is_even(facts.tolerance)
        self._recent.append(0.0 if even else reading.ledger.misallocation)
        if even or window.balance.pattern == "padding":
            return OK
        return deferred_finding(self._report, facts, reading, tuple(self._recent))

    def _report(self, facts: StepFacts, reading: Objective, lately: tuple[float, ...]) -> Outcome:
        ledger, entries = reading.ledger, reading.ledger.entries
        recent, steps = math.fsum(lately) / len(lately), len(lately)
        severity: Severity = "info"
        if recent >= self.warning:
            severity = "error" if recent >= self.error else "warning"
        over = f"; {recent:.1%} over the last {steps} steps" if steps > 1 else ""
        heavy = max(entries, key=lambda e: e.relative)
        light = min(entries, key=lambda e: e.relative)
        where = _where(entries, facts.tolerance)
        summary = (
            f"In step {facts.step}, {ledger.misallocation:.1%} of the gradient's weight sits on "
            f"the wrong tokens{over}. Weights differ {where}: {_apart(heavy, light)}"
        )
        return finding(
            severity,
            f"Token weights differ {where}",
            summary + _loss_sentence(facts),
            FIX,
            misallocation=round(ledger.misallocation, 6),
            misallocation_recent=round(recent, 6),
            balance=None if facts.factor_unmeasured else round(ledger.balance, 6),
            differ=where,
            tokens=[as_count(e.tokens) for e in entries[:64]],
            relative_weights=[round(e.relative, 4) for e in entries[:64]],
            loss_reported=facts.loss_reported,
            loss_token=facts.loss_token,
        )


def _apart(heavy: Entry, light: Entry) -> str:
    """The two extremes in words; the lighter one may weigh nothing at all."""
    if not light.relative:
        return f"the tokens of the micro-batch with {light.tokens:,.0f} tokens do not count at all."
    return (
        f"a token of the micro-batch with {heavy.tokens:,.0f} tokens counts "
        f"{heavy.relative / light.relative:.1f} times as much as one of the micro-batch with "
        f"{light.tokens:,.0f}."
    )


def _where(entries: Iterable[Entry], tolerance: float) -> str:
    """Between micro-batches, between ranks, or both."""
    by_rank: dict[int, list[Entry]] = {}
    for entry in entries:
        by_rank.setdefault(entry.rank, []).append(entry)
    spread = 1 + tolerance
    inside = any(_most(e) > _least(e) * spread for e in by_rank.values())
    shares = [total(e.share for e in es) / total(e.tokens for e in es) for es in by_rank.values()]
    between = max(shares) > min(shares) * spread
    if inside and between:
        return "between micro-batches and between ranks"
    return "between micro-batches" if inside else "between ranks"


def _most(entries: list[Entry]) -> float:
    return max(e.relative for e in entries)


def _least(entries: list[Entry]) -> float:
    return min(e.relative for e in entries)


def _loss_sentence(facts: StepFacts) -> str:
    reported, token = facts.loss_reported, facts.loss_token
    if reported is None or token is None:
        return ""
    return f" The loop accumulated a loss of {reported:.4f}; over all tokens it is {token:.4f}."
