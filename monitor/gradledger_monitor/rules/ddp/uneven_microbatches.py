"""ddp.uneven_microbatches"""

from __future__ import annotations

from gradledger_monitor.model.findings import Outcome
from gradledger_monitor.model.ranks.topology import steps_along
from gradledger_monitor.model.step_facts import StepFacts
from gradledger_monitor.model.unmeasured import NO_BACKWARD
from gradledger_monitor.rules.ddp.common import SEVERAL_RANKS, names
from gradledger_monitor.rules.reduction.fixes import TOKEN_MEAN, token_mean
from gradledger_monitor.rules.rule import OK, Rule, Window, finding, not_applicable, not_measured

FIX = TOKEN_MEAN["ranks"]
JOINED = "a rank without data steps along with the others (Join)"


class UnevenMicrobatches(Rule):
    """The ranks accumulate different numbers of micro-batches in one window.

    **What it sees**

    K differs between the ranks, and the window does not fulfil the token-mean contract, or
    could not be measured.

    **Why it matters**

    DDP averages over ranks regardless of their content: a rank with fewer micro-batches
    contributes less than its share if it divides by the usual K, and more if it divides by its
    own K.

    **What to do**

    Give every rank the same number of micro-batches (``drop_last``, a padded sampler), or
    divide by the tokens of all ranks.

    **When it is silent**

    All token weights are equal and the balance is right; a rank skipped the step; a rank without
    any backward in a loop that combines the gradients itself, such as a parameter server, or with
    ``ZeroRedundancyOptimizer`` in ``Join``.

    **Incidents**

    pytorch/pytorch#67253, pytorch/pytorch#38174
    """

    points_at = ("backward", "loss")
    inhibits = ("reduction.*",)

    precondition = SEVERAL_RANKS

    def evaluate(self, window: Window) -> Outcome:
        """Different K, unless the token-mean contract holds."""
        facts = window.facts
        if facts.missing_ranks:
            return not_measured(facts.missing_ranks)
        counts = {rank: len(record.micro_batches) for rank, record in facts.records.items()}
        if len(set(counts.values())) == 1 or any(r.skipped for r in facts.records.values()):
            return OK
        if steps_along(facts.optimizer_name, facts.records):
            return not_applicable(JOINED)
        scale = facts.run.declared_scale or 1.0
        objective = facts.objective
        if objective is not None and objective.reading.is_fair(facts.tolerance, scale):
            return OK
        few, many = min(counts.values()), max(counts.values())
        if not few and facts.ledger is None and facts.record.wrapper is None:
            idle = names([rank for rank, count in counts.items() if not count])
            return not_measured(f"{idle}: {NO_BACKWARD}, which may be intended")
        return finding(
            "error",
            "The ranks accumulate different numbers of micro-batches",
            f"The ranks hold {few} to {many} micro-batches in this window{_weights(facts)}.",
            token_mean(facts, facts.objective),
            micro_batches={str(rank): count for rank, count in list(counts.items())[:64]},
            misallocation=None if facts.ledger is None else round(facts.ledger.misallocation, 6),
        )


def _weights(facts: StepFacts) -> str:
    if facts.ledger is None:
        return "; the token weights could not be measured"
    return f", and {facts.ledger.misallocation:.1%} of the gradient's weight is on the wrong tokens"
