"""ddp.uneven_microbatches"""

from __future__ import annotations

from collections.abc import Mapping

from gradledger_monitor.model.findings import Outcome
from gradledger_monitor.model.ranks.topology import steps_along
from gradledger_monitor.model.token_ledger import Ledger, WeightedTokens, build_ledger
from gradledger_monitor.model.unmeasured import NO_BACKWARD
from gradledger_monitor.rules.ddp.common import COMBINED_GRADIENTS, names
from gradledger_monitor.rules.definition import Parameter
from gradledger_monitor.rules.number_text import percent
from gradledger_monitor.rules.objective_names import element_name
from gradledger_monitor.rules.reduction.fixes import TOKEN_MEAN, token_mean
from gradledger_monitor.rules.rule import OK, Rule, Window, finding, not_applicable, not_measured

FIX = TOKEN_MEAN["ranks"]
JOINED = "a rank without data steps along with the others (Join)"


class UnevenMicrobatches(Rule):
    """The ranks accumulate different numbers of micro-batches in one window.

    **What it sees**

    K differs between the ranks, at least 1% of the gradient's weight is on the wrong tokens, and
    at most half as much would be if each rank's weights were multiplied by its K.

    **Why it matters**

    DDP averages over ranks regardless of their content: a rank with fewer micro-batches
    contributes less than its share if it divides by the usual K, and more if it divides by its
    own K.

    **What to do**

    Give every rank the same number of micro-batches (``drop_last``, a padded sampler), or
    divide by the tokens of all ranks.

    **When it is silent**

    All token weights are equal, or they could not be measured; or they are unequal for another
    reason, such as batches of unequal lengths (another rule reports these); a rank skipped the
    step; a rank without any backward in a loop that combines the gradients itself, such as a
    parameter server, or with ``ZeroRedundancyOptimizer`` in ``Join``.

    **Incidents**

    pytorch/pytorch#67253, pytorch/pytorch#38174
    """

    points_at = ("backward", "loss")
    # each rank divides by its own K; a factor that all ranks have is another mistake
    inhibits = (
        "reduction.token_weights_unequal",
        "reduction.partial_window",
        "reduction.wrong_denominator",
        "reduction.balance_off",
    )

    least = Parameter(0.01, "misallocation below which unequal weights are left alone", most=1.0)

    precondition = COMBINED_GRADIENTS

    def evaluate(self, window: Window) -> Outcome:
        """Different K, unless the token-mean contract holds."""
        facts = window.facts
        if facts.missing_ranks:
            return not_measured(facts.missing_ranks)
        counts = {rank: len(applied) for rank, applied in facts.applied_by_rank.items()}
        if len(set(counts.values())) == 1 or any(r.skipped for r in facts.records.values()):
            return OK
        if steps_along(facts.optimizer_name, facts.records):
            return not_applicable(JOINED)
        scale = facts.run.declared_scale or 1.0
        objective = facts.objective
        if objective is not None and objective.reading.is_fair(facts.tolerance, scale):
            return OK
        few, many = min(counts.values()), max(counts.values())
        held = f"the ranks hold {few} to {many} micro-batches in this window"
        if facts.ledger is None:
            idle = [rank for rank, count in counts.items() if not count]
            if idle:
                return not_measured(f"{names(idle)}: {NO_BACKWARD}, which may be intended")
            return not_measured(f"{held}, and the weights of their elements are unknown")
        else_wrong = _with_equal_counts(facts.ledger, counts)
        if facts.ledger.misallocation < max(self.least, 2 * else_wrong):
            return OK  # what the balance shows is reported by other rules
        return finding(
            "error",
            "The ranks accumulate different numbers of micro-batches",
            f"{held.capitalize()}, and {percent(facts.ledger.misallocation)} of the gradient's "
            f"weight is on the wrong {element_name(facts.objective)}s. If each rank's weights were "
            f"multiplied by its number of micro-batches, {percent(else_wrong)} would be.",
            token_mean(facts, facts.objective),
            micro_batches={str(rank): count for rank, count in list(counts.items())[:64]},
            misallocation=round(facts.ledger.misallocation, 6),
        )


def _with_equal_counts(ledger: Ledger, counts: Mapping[int, int]) -> float:
    """The misallocation that is left if a rank does not weigh more for having fewer micro-batches.

    Ranks that divide by their counts give each micro-batch of theirs one share of theirs.
    """
    lines = [
        WeightedTokens(e.rank, e.micro_batch, e.term, e.tokens, e.weight * counts[e.rank])
        for e in ledger.lines
    ]
    other = build_ledger(lines)
    return ledger.misallocation if other is None else other.misallocation
