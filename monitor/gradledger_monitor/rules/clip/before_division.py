"""clip.before_division"""

from __future__ import annotations

import math
from typing import NamedTuple

from gradledger_monitor.ingest.schema import Event
from gradledger_monitor.model.clipping import clip_coefficient
from gradledger_monitor.model.findings import Outcome
from gradledger_monitor.model.numbers import number
from gradledger_monitor.model.step_facts import StepFacts
from gradledger_monitor.rules.balance.evidence import Near, is_round
from gradledger_monitor.rules.number_text import counted, significant
from gradledger_monitor.rules.objective_names import element_name
from gradledger_monitor.rules.rule import OK, Rule, Window, finding, not_applicable, not_measured

FIX = """\
for p in model.parameters():
    if p.grad is not None:
        p.grad.div_(divisor)                                          # before the clip
torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
optimizer.step()"""


class BeforeDivision(Rule):
    """Gradients are clipped first, and divided by K or by the number of tokens afterwards.

    **What it sees**

    A clip by norm after the last backward that scales the gradients down. Between this clip and
    the step, the loop divides them by the number of micro-batches, or by that of the tokens, in the
    window or on one rank.

    **Why it matters**

    The threshold is compared with the norm of a sum, not with that of the gradient of the step.
    The norm of the applied gradient is at most the threshold divided by that number. The clip
    engages far more often than intended, and its effect changes with K.

    **What to do**

    Divide the gradients before the clip, or divide the loss.

    **When it is silent**

    The clip leaves the gradients unchanged; the limit may contain that number, as 4 with K = 4; the
    gradients are divided by another number, or not by one factor; a window has several clips; a
    loop combines the gradients of ranks itself.

    **Incidents**

    textbook (the order of the two in a loop that divides its gradients)
    """

    points_at = ("clip_norm",)

    def evaluate(self, window: Window) -> Outcome:
        """A clip that engages, and a division by a count of the window after it."""
        facts = window.facts
        clips = facts.own_calls("clip_norm")
        if not clips:
            return not_applicable("the loop does not clip by norm")
        if facts.factor_unmeasured:
            return not_measured(facts.factor_unmeasured)
        is_last = clips[-1].after == len(facts.record.micro_batches)
        if len(clips) > 1 or not is_last or facts.all_reduce is not None:
            return OK
        division = _division_after(clips[0], facts)
        norm, limit = number(clips[0].norm), number(clips[0].limit)
        if division is None or norm is None or limit is None or clip_coefficient(clips[0]) == 1:
            return OK
        if _may_contain(limit, division.number):
            return OK
        divided = norm / division.number
        first = (
            "which the clip leaves unchanged"
            if divided <= limit
            else f"which the clip reduces to {limit:g}"
        )
        return finding(
            "warning",
            f"Gradients are clipped before they are divided by {division.name}",
            f"The clip to {limit:g} ran on gradients with a norm of {significant(norm)}. The loop "
            f"divides them by {division.name} after it, so the applied norm is at most "
            f"{significant(limit / division.number)}. Divided first, the norm is "
            f"{significant(divided)}, {first}.",
            FIX,
            divisor=division.number,
            limit=limit,
            norm=norm,
            micro_batches=facts.micro_batches,
        )


def _may_contain(limit: float, count: float) -> bool:
    """Whether a limit may be a usual one times the count, and not a usual one: mostly that is 1."""
    return is_round(limit / count) and (limit > 1 or not is_round(limit))


class _Division(NamedTuple):
    number: float
    name: str


def _division_after(clip: Event, facts: StepFacts) -> _Division | None:
    """What the loop divides the gradients by between the clip and the step, if it is a count."""
    before, whole = number(clip.factor), facts.shared_factors[facts.lowest_rank]
    if not before or not whole or not math.isfinite(before):
        return None
    near, k = Near(before / whole, facts.tolerance), facts.micro_batches
    if near(facts.scale or 0.0):
        return None  # that of the GradScaler, which unscales after the clip
    if k > 1 and near(k):
        return _Division(k, f"K = {k}")
    for tokens, where in _tokens(facts):
        if tokens > 1 and near(tokens):
            return _Division(tokens, f"the {counted(tokens, element_name(facts.objective))}{where}")
    return None


def _tokens(facts: StepFacts) -> list[tuple[int, str]]:
    """Those of the window, and of the lowest rank, from whose gradients the factor is."""
    if facts.ledger is None:
        return []
    of_all = [(round(facts.ledger.tokens), "")]
    if facts.run.world_size == 1:
        return of_all
    rank = facts.lowest_rank
    own = sum(line.tokens for line in facts.ledger.lines if line.rank == rank)
    return [*of_all, (round(own), f" of rank {rank}")]
