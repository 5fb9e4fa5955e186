"""reduction.missing_division"""

from __future__ import annotations

from collections.abc import Mapping

from gradledger_monitor.model.findings import Outcome
from gradledger_monitor.model.losses.repeated import backwards_for_inputs
from gradledger_monitor.model.objectives import Objective
from gradledger_monitor.rules.balance.further import (
    RAMPED,
    counts_of_ranks,
    is_right,
    is_weighted_statistic,
    may_be_a_weight,
)
from gradledger_monitor.rules.balance.patterns import FAIR
from gradledger_monitor.rules.definition import DEFAULTS
from gradledger_monitor.rules.gradient_scale_effects import (
    acts_as_learning_rate,
    changing_factor_effect,
    constant_factor_effect,
    intermittent_factor_effect,
    of_divided_rate,
)
from gradledger_monitor.rules.number_text import counted, significant
from gradledger_monitor.rules.objective_names import described, needs_name, objective_name
from gradledger_monitor.rules.reduction.common import (
    BALANCE_OFF,
    diagnosed,
    intended,
    known_from,
    micro_batches,
    severity_of_one,
    share_sentence,
    shows,
)
from gradledger_monitor.rules.reduction.fixes import (
    MICRO_BATCH_MEAN,
    PLAIN_LOOPS,
    UNDIVIDED_CONSTANT,
    WINDOW_LENGTH,
    Loop,
    division_of_one,
    factor_fix,
    of_plain_loop,
)
from gradledger_monitor.rules.rule import OK, Rule, Window, finding, not_measured
from gradledger_monitor.rules.state import declare

FIX = MICRO_BATCH_MEAN["plain"]

FIX_OF_OTHER_LINE = """\
# after backwards that only measure gradients, as in a validation:
optimizer.zero_grad(set_to_none=True)
# of a batch that is trained on: divide each loss by the number of backwards of the step"""

FIX_OF_INPUTS = """\
# after backwards that only serve the gradient of an input, as in an attack:
optimizer.zero_grad(set_to_none=True)
# of losses that are all trained on: divide each by the number of backwards of the step"""

ZERO_THEM = """\
# Zero the gradients after backwards that do not train, as those of a validation or an attack. Of
# losses that are trained on, divide each by the number of backwards of the step."""

FEWEST_BEFORE = 3  # windows that show how many backwards a step takes

FIX_OF_ONE = """\
# divide this loss term by K, or by what it counts in the whole window; and each other term
# that is not divided yet"""


class MissingDivision(Rule):
    """The loss is not divided by the number K of accumulated micro-batches.

    **What it sees**

    The balance of the window, or of one of its loss terms, is K instead of 1; or K times the
    constant that the loss is multiplied by. If that is not known, or may contain a division by K,
    windows of different K show it. Whatever the divisors count, such as boxes: each micro-batch is
    divided by another whole number, or by the number of all its elements, masked ones included, and
    nothing divides by K. Of a further loss, a usual constant in front of it shows it,
    or divisions by other constants than K, where a division is written for the main loss. If the
    divisor of the main loss is not known, a mean that nothing divides shows it. If K divides a
    further loss, the main one is compared with it. Constants of losses that add up to 1, such as
    those of a distillation, contain no division by K. Ranks may have different K.

    **Why it matters**

    The gradient is K times too large, and changes with the number of accumulation steps. With
    SGD, the effective learning rate is K times the configured one: if you divide that by K
    instead, declare ``scale=K``. Adam cancels most of the factor, but gradients are clipped at a K
    times smaller true norm. If only one term is not divided, its weight relative to the other terms
    is K times too large, which no optimizer cancels.

    If most windows that lack the division have another K, the finding states both. A constant 1/K
    of the main loss may also be its weight; the finding of a further loss then states both.

    If a window begins with backwards of another line, and windows before had none of these, the
    finding states it: gradients that a validation measured may be left there. So it does if
    earlier backwards on the batch of the last one give a gradient to an input, as an attack does.

    **What to do**

    Divide every term by K before ``backward()``, or by the tokens of the whole window. Zero the
    gradients after backwards that only measure them, or that serve the gradient of an input.

    **When it is silent**

    K = 1; the run declares ``scale=K``; the gradients are divided after backward; each backward may
    have a separate loss, such as a batch of each of several DataLoaders. If each micro-batch adds
    up several means, as of the models of an ensemble, or as many losses as there are micro-batches,
    one number may be K or their count: the verdict is then incomplete. So it is for a bare sum that
    nothing divides. Of a further loss with less than 1% of the gradient's weight, it is
    information; so it is of a sum of statistics, such as the load of experts, with a constant in
    front of it, which may contain 1/K. A further loss is not measured whose constant was another
    one in most windows before, unless it was found undivided earlier: a weight that is raised or
    lowered in steps may contain 1/K, too.

    **Incidents**

    karpathy/nanoGPT#168, huggingface/transformers#37766, hiyouga/LlamaFactory#7443,
    NVIDIA/Megatron-LM#1532, fastai/fastai#3023
    """

    points_at = ("backward", "loss")
    inhibits = ("reduction.balance_off",)
    precondition = BALANCE_OFF
    state = declare(_undivided=list[str])

    def __init__(self, thresholds: Mapping[str, float] = DEFAULTS) -> None:
        super().__init__(thresholds)
        self._undivided: list[str] = []  # further objectives that were found so

    def evaluate(self, window: Window) -> Outcome:
        """B = K, or a further objective's balance K times its coefficient."""
        if shows(window, "missing"):
            return _of_all(window)
        ramped = next((d for d in window.diagnoses if d.reason == RAMPED), None)
        missing = diagnosed(window, "term_missing") or ramped
        if missing is None or missing.objective is None:
            return OK
        name = missing.objective.name
        if name not in self._undivided:
            if missing is ramped:
                return not_measured(RAMPED)
            self._undivided.append(name)
        return _of_one(window, missing.objective, missing.evidence)


def _of_one(window: Window, objective: Objective, evidence: str) -> Outcome:
    k, objectives = window.facts.micro_batches_of(objective), window.facts.objectives
    name, main = objective_name(objective, objectives), objective_name(objectives[0], objectives)
    by = "the K of each window" if evidence else f"K = {k}"
    one = described(name, objective)
    how = (
        f"not the {one}. {evidence}, so that its share is proportional to K."
        if evidence
        else f"the {one} is added undivided on each of the {k} micro-batches. Its weight is {k} "
        "times its coefficient."
    )
    counts, factor = counts_of_ranks(window.facts, objective), float(k)
    if not evidence and len(set(counts)) > 1:
        by, factor = "K", sum(counts) / len(counts)
        how = (
            f"the {one} is added undivided on each micro-batch, of which the ranks have "
            f"{min(counts)} to {max(counts)}. On average, its weight is "
            f"{significant(factor)} times its coefficient."
        )
    in_doubt = not evidence and is_weighted_statistic(window.facts, objective)
    if in_doubt:
        how = (
            f"the {one} is added on each micro-batch, and nothing but its constant may contain a "
            f"division by K. If it contains none, the weight is {significant(factor)} times the "
            "coefficient."
        )
    normalised = f"The {main} is normalised over the window, but "
    if shows(window, "constant"):  # what divides the main loss is not known
        normalised, how = "", how[0].upper() + how[1:]
    elif _may_be_a_weight(window, objectives[0]):
        normalised = f"The {main} is divided by K, or its weight is 1/{k}. "
        how = how[0].upper() + how[1:]
    return finding(
        "info" if in_doubt else severity_of_one(objective, objectives),
        f"The {name} {'may not be' if in_doubt else 'is not'} divided by {by}",
        f"{normalised}{how}{share_sentence(objective, objectives)}",
        division_of_one(window.facts, objective, FIX_OF_ONE),
        objective=name,
        factor=round(factor, 6) if factor % 1 else int(factor),
        micro_batches=k,
    )


def _of_all(window: Window) -> Outcome:
    k, objective = micro_batches(window), window.balance.objective
    assert objective is not None
    objectives = window.facts.objectives
    others = [d for d in window.diagnoses if d.objective not in (None, objective)]
    undivided = [d for d in others if d.pattern in ("missing", "term_missing") and d.ratio == k]
    is_whole = bool(undivided) and len(undivided) == len(objectives) - 1
    several = needs_name(window.facts) and not is_whole
    name = objective_name(objective, objectives) if several else "loss"
    right = [
        d.objective
        for d in others
        if d.objective and (d.pattern in FAIR or is_right(window.facts, d.objective))
    ]
    beside, effect = bool(right), constant_factor_effect(k, window.facts)
    if beside:
        unknown = all(_may_be_a_weight(window, each) for each in right)
        effect = (
            f"{_if_divided(k) if unknown else 'Beside the losses that are divided'}, its weight is "
            f"{k} times too large, which no optimizer cancels"
        )
    if for_inputs := backwards_for_inputs(window.facts.applied):
        return _of_inputs(window, for_inputs, effect)
    leftovers = _of_another_line(window)
    if leftovers:
        effect = effect if beside else intermittent_factor_effect(k, window.facts)
        return _of_leftovers(window, leftovers, effect)
    usual = _usual_count(window)
    most, times = "", f"{k} times too large"
    if usual != k:  # as in the last window of an epoch
        most = f" ({usual} in most windows that lack the division)"
        times += f" ({usual} times in most such windows)"
    if most and not beside:
        effect = changing_factor_effect(window.facts)
    elif not beside and acts_as_learning_rate(window.facts):
        times = f"{k} times that of the mean"
        effect += of_divided_rate(k, objective.ledger.balance)
    return finding(
        "warning",
        f"The {name} is not divided by K = {k}{most}",
        f"The balance{f' of step {window.facts.step:,}' if most else ''} is "
        f"{significant(objective.ledger.balance)} instead of "
        f"{significant(intended(window))}: the gradient{' of this loss' if several else ''} is "
        f"{times}. "
        f"{known_from(window)}{effect}.",
        division_of_one(window.facts, objective, FIX_OF_ONE)
        if beside
        else factor_fix(_fixes(window), window.facts, objective),
        balance=round(objective.ledger.balance, 6),
        micro_batches=k,
        factor=k,
        misallocation=round(objective.ledger.misallocation, 6),
    )


def _fixes(window: Window) -> dict[Loop, str]:
    """Those that leave out a constant, too, if it may undo the average over the ranks.

    No number divides windows of different lengths.
    """
    of_ranks = window.balance.constant == window.facts.run.world_size > 1
    if of_ranks and window.facts.averaged:
        return {**MICRO_BATCH_MEAN, **UNDIVIDED_CONSTANT}
    if any(closed.micro_batches != micro_batches(window) for closed in window.past):
        return {
            **MICRO_BATCH_MEAN,
            **{each: WINDOW_LENGTH[each] for each in (*PLAIN_LOOPS, "fabric")},
        }
    return MICRO_BATCH_MEAN


def _usual_count(window: Window) -> int:
    """The micro-batches of most windows before that lack the division; else those of this one."""
    before = [closed.micro_batches for closed in window.of_same_loss if closed.pattern == "missing"]
    usual = max(before, key=before.count, default=0)
    return usual if 2 * before.count(usual) > len(before) else micro_batches(window)


def _may_be_a_weight(window: Window, objective: Objective) -> bool:
    """Whether the 1/K of a loss may be its weight: no window of another K shows that it is not."""
    k = window.facts.micro_batches_of(objective)
    is_only = all(closed.micro_batches == k for closed in window.past)
    return is_only and may_be_a_weight(objective, k)


def _if_divided(k: int) -> str:
    return f"If K divides the losses beside it, and 1/{k} is not their weight"


def _of_another_line(window: Window) -> list[int]:
    """The calls of other lines before the usual ones of a step, if most steps have none of them."""
    calls = [micro_batch.call or 0 for _, micro_batch in window.facts.applied]
    usual = calls.count(calls[-1])
    before = [closed.micro_batches for closed in window.past]
    is_usual = len(before) >= FEWEST_BEFORE and 2 * before.count(usual) > len(before)
    first = calls[: len(calls) - usual]
    return first if is_usual and 0 not in calls and calls[-1] not in first else []


def _of_inputs(window: Window, count: int, effect: str) -> Outcome:
    one = count == 1
    return _of_others(
        window,
        f"{counted(count, 'backward')} for the gradient of an input add{'s' * one} to a step",
        f"All {micro_batches(window)} backwards of this window are on the same batch, and the "
        f"first {'gives' if one else f'{count} give'} a gradient to an input, as those of an "
        f"adversarial attack do. {'Its' if one else 'Their'} gradients in the parameters were not "
        "zeroed before the step.",
        effect,
        FIX_OF_INPUTS,
        for_inputs=count,
    )


def _of_leftovers(window: Window, calls: list[int], effect: str) -> Outcome:
    lines = "another line" if len(set(calls)) == 1 else "other lines"
    adds = f"{counted(len(calls), 'backward')} of {lines} add{'s' * (len(calls) == 1)}"
    usual = len(window.facts.applied) - len(calls)
    return _of_others(
        window,
        f"{adds} to a step",
        f"Most windows before had {counted(usual, 'backward')}. This one begins with {len(calls)} "
        f"of {lines} of the script, whose gradients were not zeroed before the usual "
        f"{'one' if usual == 1 else 'ones'}.",
        effect,
        FIX_OF_OTHER_LINE,
        of_other_lines=len(calls),
    )


def _of_others(
    window: Window, title: str, stated: str, effect: str, fix: str, **evidence: int
) -> Outcome:
    """Backwards that may not be meant to train add to a step."""
    k, objective = micro_batches(window), window.balance.objective
    assert objective is not None
    return finding(
        "warning",
        title,
        f"{stated} The balance is {significant(objective.ledger.balance)} instead of "
        f"{significant(intended(window))}: the gradient is a sum of {counted(k, 'micro-batch')}. "
        f"{effect}.",
        of_plain_loop(fix, window.facts, ZERO_THEM),
        balance=round(objective.ledger.balance, 6),
        micro_batches=k,
        **evidence,
        factor=k,
        misallocation=round(objective.ledger.misallocation, 6),
    )
