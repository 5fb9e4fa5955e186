"""reduction.unnormalised_sum"""

from __future__ import annotations

from collections.abc import Mapping

from gradledger_monitor.model.findings import Outcome
from gradledger_monitor.rules.balance.evidence import is_divided_by
from gradledger_monitor.rules.definition import DEFAULTS
from gradledger_monitor.rules.gradient_scale_effects import (
    acts_as_learning_rate,
    changing_factor_effect,
    constant_factor_effect,
)
from gradledger_monitor.rules.number_text import counted, significant
from gradledger_monitor.rules.objective_names import element_name
from gradledger_monitor.rules.reduction.common import (
    BALANCE_OFF,
    balance,
    declared,
    factor,
    micro_batches,
    shows,
    tokens,
)
from gradledger_monitor.rules.reduction.fixes import TOKEN_MEAN, token_mean
from gradledger_monitor.rules.rule import OK, Rule, Window, as_count, finding
from gradledger_monitor.rules.state import declare

FIX = TOKEN_MEAN["plain"]


TOKENS_DIFFER = 0.02  # relative difference of two windows' token counts that is a change


class UnnormalisedSum(Rule):
    """A summed loss is not divided by the number of tokens.

    **What it sees**

    Every token has a weight of 1, or 1 divided by the number of ranks, of micro-batches, or of
    both. The balance then follows the number of tokens N. If K divides the loss, and each
    micro-batch has K tokens, the number may be their count; the finding states both.

    **Why it matters**

    The size of the gradient follows the number of tokens: the effective learning rate of SGD
    changes from step to step with the lengths of the texts, and with every change of the batch
    size.

    **What to do**

    Divide by the tokens of the window, in the loss or in the gradients after the last backward.

    **When it is silent**

    The gradients are divided after backward; the loss is a bare sum of elements, whose unit is
    not known; the loss multiplies its elements by returns or advantages, and each micro-batch may
    be an episode; the run declares the factor with ``scale=``. Beside another sum, as in the loss
    of a variational autoencoder, the finding is information, unless it is a cross entropy or a
    divergence from given probabilities. With SGD and without clipping, so it is while each step has
    one micro-batch, and all steps so far have the same number of tokens: the factor is constant,
    and the learning rate may be chosen for it.

    **Incidents**

    allenai/open-instruct#1728, ultralytics/yolov5#464
    """

    points_at = ("loss", "backward")
    precondition = BALANCE_OFF
    state = declare(_differs=bool)

    def __init__(self, thresholds: Mapping[str, float] = DEFAULTS) -> None:
        super().__init__(thresholds)
        self._differs = False  # two windows had different numbers of tokens

    def evaluate(self, window: Window) -> Outcome:
        """Every token weighs 1, up to a division by ranks or micro-batches."""
        if not shows(window, "sum"):
            return OK
        n, b, excess = tokens(window), balance(window), factor(window)
        k = micro_batches(window)
        earlier = [past.tokens for past in window.of_same_loss if past.tokens]
        follows = any(abs(n / tokens - 1) > TOKENS_DIFFER for tokens in earlier)
        self._differs |= any(n != tokens for tokens in earlier)
        linear = acts_as_learning_rate(window.facts)
        may_be_meant = k == 1 and not self._differs and linear
        main, *further = window.facts.objectives
        cross_entropy = main.kind.startswith(("NllLoss", "KlDivergence"))
        # several sums may be a bound on a likelihood, which is a sum over its samples (a VAE)
        likelihood = any(o.kind.startswith("SumBackward") and not o.is_penalty for o in further)
        constant = constant_factor_effect(excess, window.facts)
        effect = changing_factor_effect(window.facts) if follows else constant
        is_certain = (cross_entropy and not may_be_meant) or (follows and not likelihood)
        element = element_name(window.balance.objective)
        held = counted(round(n), element)
        title, either = f"The summed loss is not divided by the number of {element}s", ""
        if _may_be_its_count(window):
            title = f"The summed loss is divided by {k} alone"
            either = (
                f" {k} is K, and each micro-batch has {k} {element}s: if it counts these, the "
                f"division by K is missing; if it is K, that by the {element}s."
            )
        if may_be_meant and earlier:
            either += (
                f" The windows before had as many {element}s: if the learning rate is chosen for "
                "the sum, this is intended."
            )
        changes = f" The number of {element}s differs between windows." if follows else ""
        return finding(
            "warning" if is_certain else "info",
            title,
            f"The balance is {significant(b)} instead of {significant(declared(window))}, because "
            f"the average weight of the {held} is {significant(b / n)}.{either}{changes} "
            f"{effect}.",
            token_mean(window.facts, window.balance.objective),
            balance=round(b, 6),
            tokens=as_count(n),
            factor=round(excess, 6),
            follows_tokens=follows,
        )


def _may_be_its_count(window: Window) -> bool:
    """Whether K divides each term, and each has as many tokens: the divisor may be either."""
    objective, k = window.balance.objective, micro_batches(window)
    assert objective is not None
    counted = all(term.tokens == k for term in objective.terms)
    return k > 1 and counted and is_divided_by(objective, k)
