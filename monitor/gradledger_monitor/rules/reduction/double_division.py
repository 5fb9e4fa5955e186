"""reduction.double_division"""

from __future__ import annotations

import math

from gradledger_monitor.model.findings import Outcome
from gradledger_monitor.model.losses.repeated import passes_of_one_loss
from gradledger_monitor.model.objectives import Objective
from gradledger_monitor.rules.balance.after_backward import divides_after_backward
from gradledger_monitor.rules.balance.evidence import is_divided_by
from gradledger_monitor.rules.balance.further import (
    is_divided_by_count_and_k,
    is_divided_by_its_window,
)
from gradledger_monitor.rules.gradient_scale_effects import constant_factor_effect
from gradledger_monitor.rules.number_text import significant
from gradledger_monitor.rules.objective_names import objective_name
from gradledger_monitor.rules.reduction.common import (
    BALANCE_OFF,
    balance,
    diagnosed,
    known_from,
    micro_batches,
    of_constant,
    of_declared,
    shows,
)
from gradledger_monitor.rules.reduction.fixes import (
    DIVIDED_ONCE,
    ONE_DIVISION,
    WINDOW_LENGTH,
    factor_fix,
)
from gradledger_monitor.rules.rule import OK, Rule, Window, finding

FIX = ONE_DIVISION["plain"]
PASSES = (
    "Each backward has the loss of the whole window, over features that are cached but for those "
    "of one micro-batch: their gradients add up without a division. "
)

FIX_OF_EITHER = """\
# divide the loss by K once. The gradients are averaged over the ranks already: nothing else must
# divide by their number."""
FIX_OF_PASSES = """\
# Do not divide the loss by K: each backward has the loss of the whole window, with a gradient in
# one of its K parts, and these gradients add up to that of the loss. A parameter beside the
# features, such as a temperature, gets its gradient in each backward: detach it in all but one."""
FIX_OF_GRADIENTS = """\
# The loss is divided already: do not divide the gradients by K after backward."""
FIX_OF_ONE = "# divide this loss term by K once"
FIX_OF_COUNT = "# divide this loss term by the count of the window alone, not by K besides"


class DoubleDivision(Rule):
    """The loss is divided by K twice.

    **What it sees**

    The balance of the window is 1/K instead of 1; in a short window of k micro-batches, k/K
    squared. Or it is 1/K times the constant that the loss is multiplied by; if that is not known,
    windows of different K show it. If the graph shows one division by the square of K, the finding
    states that windows may be too short, too. Of several losses, K divides a further one twice, and
    the main one once, or the tokens of the window divide this alone; or K divides a further one
    besides these tokens. That is information, because one of the divisors may be a count of that
    loss.

    **Why it matters**

    The gradient is K times too small. With SGD, the effective learning rate is 1/K of the
    configured one. Adam cancels most of the factor, but epsilon is then K times larger relative
    to the gradient, and clipping engages at a K times larger true norm.

    **What to do**

    Find the two divisions. Often the loss function already divides by the tokens of the whole
    window, and the trainer divides by ``gradient_accumulation_steps`` once more. Remove one of
    them.

    **When it is silent**

    K = 1; the run declares the factor with ``scale=``; a constant multiplier of the loss
    explains the factor; of a further loss, K = 2, or K is a count of its elements, unless the loss
    is a mean that divides by these itself.

    **Incidents**

    modelscope/ms-swift#10117, modelscope/ms-swift#10116, huggingface/accelerate#3533
    """

    points_at = ("loss", "backward")
    points_at_divisions = True
    precondition = BALANCE_OFF

    def evaluate(self, window: Window) -> Outcome:
        """B = 1/K, or K divides a further objective once more than the main one."""
        if not shows(window, "double"):
            twice = diagnosed(window, "term_double")
            if twice is None or twice.objective is None:
                return OK
            return _of_one(window, twice.objective)
        k, ratio = micro_batches(window), window.balance.ratio
        divisor = round(math.sqrt(k / ratio))  # K; a short window holds fewer micro-batches
        share = f"1/{k}" if k == divisor else f"{k}/{divisor**2}"
        of = of_declared(window) or of_constant(window)
        passes = passes_of_one_loss(window.facts.applied) == k == divisor
        if window.facts.averaged and window.facts.run.world_size == k == divisor:
            return _of_either(window, k, ratio)
        later = divides_after_backward(window.facts, divisor)
        what = "the gradients after backward" if later else "the loss or of the gradients"
        written = _square(window, k) if k == divisor and not (later or passes) else 0
        if written:
            return _of_short_windows(window, k, written)
        fix = FIX_OF_GRADIENTS if later else FIX_OF_PASSES
        if not (later or passes):
            fix = factor_fix(ONE_DIVISION, window.facts, window.balance.objective, DIVIDED_ONCE)
        return finding(
            "warning",
            f"The gradient is divided by K = {divisor} once too often",
            f"The balance is {significant(balance(window))} = {share}{of}, which matches one "
            f"division by K too many, of {what}: the gradient is {significant(1 / ratio)} times "
            f"too small. {PASSES if passes else ''}"
            f"{known_from(window)}{constant_factor_effect(ratio, window.facts)}.",
            fix,
            balance=round(balance(window), 6),
            micro_batches=k,
            factor=ratio,
        )


def _square(window: Window, k: int) -> int:
    """K squared, if the graph shows one division by this number, and none by K; else 0."""
    objective = window.balance.objective
    shown = k > 1 and objective is not None and is_divided_by(objective, k * k)
    return k * k if shown else 0


def _of_short_windows(window: Window, k: int, divisor: int) -> Outcome:
    """Windows may be shorter than they are meant to be, or K divides twice."""
    ratio = window.balance.ratio
    return finding(
        "warning",
        f"Windows of {k} micro-batches are divided by {divisor}",
        f"Each loss is divided by {divisor} once, and a window holds {k} micro-batches, so the "
        f"balance is {significant(balance(window))} = {k}/{divisor}"
        f"{of_declared(window) or of_constant(window)}. If {divisor} is meant as the length of a "
        f"window, the optimizer steps too early, or micro-batches are left out. If it is "
        f"{k} * {k}, K divides once too often. "
        f"{known_from(window)}{constant_factor_effect(ratio, window.facts)}.",
        factor_fix(WINDOW_LENGTH, window.facts, window.balance.objective),
        balance=round(balance(window), 6),
        micro_batches=k,
        divisor=divisor,
        factor=ratio,
    )


def _of_either(window: Window, k: int, ratio: float) -> Outcome:
    """The average over the ranks may be the one that is taken twice."""
    return finding(
        "warning",
        f"The gradient is divided by {k} once too often: by K, or by the number of ranks",
        f"The balance is {significant(balance(window))} = 1/{k}"
        f"{of_declared(window) or of_constant(window)}, so the gradient is {k} times too small. K "
        f"and the number of ranks are both {k}: which of them divides once too often is not known. "
        f"{known_from(window)}{constant_factor_effect(ratio, window.facts)}.",
        FIX_OF_EITHER,
        balance=round(balance(window), 6),
        micro_batches=k,
        factor=ratio,
    )


def _of_one(window: Window, objective: Objective) -> Outcome:
    k, objectives = window.facts.micro_batches_of(objective), window.facts.objectives
    name, main = objective_name(objective, objectives), objective_name(objectives[0], objectives)
    if is_divided_by_count_and_k(objective, objectives[0], k):
        return finding(
            "info",
            f"The {name} is divided by a count of the window and by {k}, which is K",
            f"The {main} is divided by its count in the window alone, and the {name} by this "
            f"count and by {k}. If {k} is a number of layers, heads or outputs, or a weight of "
            f"1/{k} is intended, nothing is wrong. If it is K, the weight of the {name} is 1/{k} "
            "of its coefficient.",
            FIX_OF_COUNT,
            objective=name,
            micro_batches=k,
        )
    of_main = f"{k} once, and the {name} twice"
    if is_divided_by_its_window(objectives[0]):
        of_main = f"its count in the window alone, and the {name} by {k} twice"
    return finding(
        "info",
        f"The {name} is divided by K = {k} twice, or by a count that is {k}, too",
        f"The {main} is divided by {of_main}. If one of its divisors is a "
        "number of layers, heads or outputs, or the batch size, nothing is wrong. If both are K, "
        f"its weight is 1/{k} of its coefficient.",
        FIX_OF_ONE,
        objective=name,
        micro_batches=k,
    )
