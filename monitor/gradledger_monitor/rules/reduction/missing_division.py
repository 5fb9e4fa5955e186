"""reduction.missing_division"""

from __future__ import annotations

from gradledger_monitor.model.findings import Outcome
from gradledger_monitor.rules import effects
from gradledger_monitor.rules.reduction.common import BALANCE_OFF, shows
from gradledger_monitor.rules.rule import OK, Rule, Window, finding

FIX = """\
# each of the K micro-batches must contribute 1/K of the gradient
(loss / K).backward()
# better, when micro-batches hold different numbers of tokens:
(F.cross_entropy(logits, labels, reduction="sum") / tokens_in_window).backward()"""


class MissingDivision(Rule):
    """The loss of each micro-batch is added without dividing by their number K.

    **What it sees**

    The balance of the window, or of one of its loss terms, is K where it should be 1.

    **Why it matters**

    The gradient is K times too large, and changes with the accumulation steps. With SGD the
    learning rate is K times the configured one. Adam hides most of it, but a clipping threshold
    engages K times too early. A single term that is not divided is K times too strong against
    the others, which no optimizer hides.

    **What to do**

    Divide every term by K before ``backward()``, or by the tokens of the whole window.

    **When it is silent**

    K = 1; the run declares ``scale=K``; the gradients are divided after backward.

    **Incidents**

    karpathy/nanoGPT#168, huggingface/transformers#37766, hiyouga/LlamaFactory#7443,
    NVIDIA/Megatron-LM#1532, fastai/fastai#3023
    """

    inhibits = ("reduction.token_weights_unequal",)

    precondition = BALANCE_OFF

    def evaluate(self, window: Window) -> Outcome:
        """B = K, or one term's balance K times its coefficient."""
        if not shows(window, "missing", "term_missing"):
            return OK
        facts, seen = window.facts, window.balance
        k = facts.micro_batches
        if seen.pattern == "term_missing":
            kind = seen.term.rpartition("#")[0]
            return finding(
                "warning",
                f"The loss term {kind} is not divided by K = {k}",
                f"The main loss is normalised over the window, but the term {seen.term} is added "
                f"undivided on each of the {k} micro-batches: it weighs {k} times what its "
                "coefficient says.",
                FIX,
                term=seen.term,
                factor=k,
                micro_batches=k,
            )
        assert seen.reading is not None
        balance = seen.reading.ledger.balance
        return finding(
            "warning",
            f"The loss is not divided by K = {k}",
            f"The balance is {balance:.4g}: the gradient is {k} times that of the same data in "
            f"one batch. {effects.of_factor(k, facts)}.",
            FIX,
            balance=round(balance, 6),
            micro_batches=k,
            factor=k,
            misallocation=round(seen.reading.ledger.misallocation, 6),
        )
