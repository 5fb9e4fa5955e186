"""reduction.world_size"""

from __future__ import annotations

from collections.abc import Mapping

from gradledger_monitor.model.findings import Outcome, Withdrawal
from gradledger_monitor.model.objectives import Objective
from gradledger_monitor.model.ranks.manual_all_reduce import ManualAllReduce
from gradledger_monitor.model.ranks.parts_by_hand import added_up_twice
from gradledger_monitor.model.step_facts import StepFacts
from gradledger_monitor.model.tolerances import WEIGHT_HALF
from gradledger_monitor.rules.balance.after_backward import multiplied_later
from gradledger_monitor.rules.balance.evidence import Near, is_reduced_by_mean
from gradledger_monitor.rules.balance.patterns import NORMALISED
from gradledger_monitor.rules.ddp.common import unwaited
from gradledger_monitor.rules.definition import DEFAULTS
from gradledger_monitor.rules.framework_fixes import framework
from gradledger_monitor.rules.gradient_scale_effects import (
    acts_as_learning_rate,
    constant_factor_effect,
    of_divided_rate,
)
from gradledger_monitor.rules.number_text import significant
from gradledger_monitor.rules.objective_names import objective_name
from gradledger_monitor.rules.reduction.common import (
    balance,
    declared,
    diagnosed,
    factor,
    no_mistake,
    shows,
)
from gradledger_monitor.rules.reduction.fixes import (
    ONE_OF_BOTH_LESS,
    ONE_OF_BOTH_MORE,
    ONE_WORLD_SIZE_LESS,
    ONE_WORLD_SIZE_MORE,
    SUM_OVER_WINDOW,
    factor_fix,
    fix_of_tokens,
    of_plain_loop,
)
from gradledger_monitor.rules.reduction.parts_of_a_model import (
    SUM_MULTIPLIED,
    LeftOutAgain,
    of_divisors,
    of_function,
    of_unequal,
    scale_of_parts,
    wrapper_divisors,
)
from gradledger_monitor.rules.rule import (
    OK,
    Precondition,
    Rule,
    Window,
    finding,
    not_applicable,
    not_measured,
)
from gradledger_monitor.rules.state import declare

FIX = ONE_WORLD_SIZE_MORE["ranks"]

# By what the right factor times the sum of the ranks' gradients is.
FIX_BY_HAND_AVERAGE = """\
# after the last backward, for each parameter p:
dist.all_reduce(p.grad)
p.grad /= dist.get_world_size()            # once: each rank divides by its count"""

FIX_BY_HAND_SUM = """\
# after the last backward, for each parameter p:
dist.all_reduce(p.grad)                    # the sum: the loss is divided for all ranks already"""

FIX_OF_HOOK = """\
# in the comm hook of DDP, whose result replaces the gradients: multiply the sum of the ranks'
# gradients by the right factor, once"""

FIX_AVERAGED = """\
loss.backward()                            # DDP and FSDP average the gradients here
optimizer.step()                           # no further all-reduce of them, and no factor"""

NOTHING_FURTHER = """\
# DDP and FSDP average the gradients in backward: no further all-reduce of them, and no factor."""

FIX_ACROSS_GROUPS = """\
# after the last backward, for each parameter p:
dist.all_reduce(p.grad, group=across)      # one rank of each group
p.grad /= dist.get_world_size(across)
# FSDP2: p.grad.to_local(), among the ranks that hold the same shard"""

FIX_BY_HAND_WEIGHTED = """\
# after the last backward, for each parameter p:
p.grad *= tokens / all_tokens              # of this rank and of all: the weights add up to 1
dist.all_reduce(p.grad)"""

FIX_BY_DIVISOR = """\
# before the window:
tokens = sum((labels != -100).sum() for _, labels in window)    # causal LM: labels[:, 1:]
dist.all_reduce(tokens)
# for each micro-batch:
loss = F.cross_entropy(logits, labels, reduction="sum") / tokens
(loss * factor).backward()                 # that of set_gradient_divide_factor"""

FIX_OF_PENALTY = """\
# every rank adds the same penalty: a share of it on each
loss = loss + penalty / world_size"""


def _no_mistake_of_ranks(window: Window) -> Outcome | None:
    """The outcome for one rank, or if the balance shows no mistake.

    At the end of the process: unless the models became equal after the last step.
    """
    facts = window.facts
    if facts.record.left_open is not None:
        return None if _models_become_equal(facts) else AT_THE_END
    if scale_of_parts(facts) is not None or added_up_twice(facts.record) is not None:
        return None
    if facts.run.world_size == 1:
        return not_applicable("one rank")
    return None if wrapper_divisors(facts) or _unequal(facts) else no_mistake(window)


def _models_become_equal(facts: StepFacts) -> bool:
    """Whether the models of the ranks became equal, and not by an average or a copy."""
    exchange = facts.exchange
    return exchange is not None and exchange.equal and exchange.mixture not in ("average", "copy")


def _unequal(facts: StepFacts) -> ManualAllReduce | None:
    """What a loop did that gives some gradients another factor, or combines them as no sum."""
    combined = facts.all_reduce
    return combined if combined and (combined.unequal or combined.is_no_sum) else None


MAY_ADD_CHANGES_UP = (
    "each rank steps on its own gradients, which are as small as a sum over the ranks needs them, "
    "and their models become equal without being averaged: whether the loop adds up the changes of "
    "all ranks is not known"
)
AT_THE_END = not_applicable("no step follows")
BALANCE_OFF_BY_RANKS = Precondition(
    "the balance of several ranks is off", _no_mistake_of_ranks, ended=True
)


class WorldSize(Rule):
    """The normalisation lacks the world size, or applies it twice.

    **What it sees**

    With R ranks, the balance is 1/R or R instead of 1. If a constant R in front of the loss
    explains the factor, it may also be an intended weight: then declare it with ``scale=``. Under
    FSDP2, the factor that was really applied counts (``set_gradient_divide_factor``); factors that
    differ between parameters over the same ranks are reported, too, and DDP models over different
    numbers of ranks that exchange activations, such as experts and the rest of a model. Beside a
    DDP or FSDP2 model, a loop may all-reduce the gradients of parameters outside the wrapper
    itself: they must be divided by the same number. So must all gradients that a loop without a
    wrapper combines: if those of some parameters are R times as large, it combines them twice, and
    experts need the divisor of the rest although fewer ranks hold them. It is reported, too, if it
    combines them by a maximum, minimum or product, or if what one rank computed is not in the sum
    at the same coordinates in five windows in a row. Where ranks hold one model
    in parts, as in tensor parallelism, gradients that are equal on all of them must not be added
    up; nor may an autograd function add up again what it has added up over the ranks. Where ranks
    without a wrapper combine no gradients and the balance is 1/R, the all-reduce may be missing.
    With as many micro-batches as ranks, the factor may be one of K; the finding states both.
    A group of g ranks, such as a node or a dimension of a mesh, gives R/g and g/R: the loss is
    divided by what the group counts, or multiplied by its size.

    **Why it matters**

    DDP and FSDP divide the summed gradient by the number of ranks. A loss that is already
    divided by the tokens of all ranks is then R times too small. A loss that is multiplied by R
    without that division is R times too large. The result changes with the number of GPUs. A
    loop that calls all-reduce itself makes the same mistake if it does not divide by R, or
    divides once too often. A penalty on the parameters is the same on every rank: where the
    ranks' gradients are added up, it counts R times.

    **What to do**

    Divide by the tokens of the rank, or multiply the globally normalised sum by the world size.
    Divide a penalty by the world size if gradients are added up.

    **When it is silent**

    One rank; ``sum / N * R`` under averaging DDP, which is right; the run declares the factor
    with ``scale=``. Ranks that step on their own gradients may add up the changes of their models:
    once these become equal without being averaged, an earlier finding is withdrawn (not measured).

    **Incidents**

    meta-pytorch/torchtune#2172, ultralytics/ultralytics#18616, facebookresearch/fairseq2#430
    """

    points_at = ("loss", "backward")
    precondition = BALANCE_OFF_BY_RANKS
    state = declare(_equalised=bool, _alone=bool, _left_out=LeftOutAgain)

    def __init__(self, thresholds: Mapping[str, float] = DEFAULTS) -> None:
        super().__init__(thresholds)
        self._equalised = False  # the ranks' models became equal: no average, and no copy
        self._left_out = LeftOutAgain()
        self._alone = False  # it has reported that each rank steps on its own gradient

    def evaluate(self, window: Window) -> Outcome:
        """B = R or 1/R."""
        self._equalised |= _models_become_equal(window.facts)
        if window.facts.record.left_open is not None:
            return Withdrawal("not_measured", MAY_ADD_CHANGES_UP) if self._alone else AT_THE_END
        factor_of_sum = added_up_twice(window.facts.record)
        if factor_of_sum is not None:
            return of_function(factor_of_sum)
        scale = scale_of_parts(window.facts)
        if scale is not None:
            return not_measured(SUM_MULTIPLIED.format(significant(scale)))
        ranks, divisors = window.facts.run.world_size, wrapper_divisors(window.facts)
        if divisors:
            return of_divisors(window.facts, divisors)
        unequal = _unequal(window.facts)
        self._left_out.add(None if unequal is None else unequal.left_out)
        if unequal is not None:
            return of_unequal(unequal, ranks, self._left_out)
        added = diagnosed(window, "term_world")
        if added is not None and added.objective is not None:
            return _added(window, added.objective)
        if not shows(window, "world", "world_or_weight"):
            return OK
        if window.balance.pattern == "world_or_weight":
            return _ambiguous(window, ranks)
        excess, of_k = _excess(window)
        if _may_be_of_k(window):
            of_k = f", or of K = {ranks}"
        size = "small" if excess < 1 else "large"
        loop_factor = window.facts.all_reduce_factor
        times = significant(max(excess, 1 / excess))
        if excess < 1 and _steps_alone(window.facts):
            if self._equalised:
                return Withdrawal("not_measured", MAY_ADD_CHANGES_UP)
            outcome = _not_added_up(window, excess)
            self._alone |= outcome.status == "finding"
            return outcome
        effect = constant_factor_effect(excess, window.facts)
        if excess > 1 and acts_as_learning_rate(window.facts):
            effect += of_divided_rate(excess, balance(window))
        return finding(
            "warning",
            f"The gradient is {times} times too {size}: a factor of the world size{of_k}",
            f"The balance over {ranks} ranks is {significant(balance(window))}{_cause(window)}. "
            f"{effect}.",
            _fix(window) if loop_factor is None else _fix_by_hand(window, loop_factor),
            balance=round(balance(window), 6),
            world_size=ranks,
            factor=round(excess, 6),
            loop_factor=None if loop_factor is None else round(loop_factor, 6),
            divisor=window.facts.divisor,
        )


def _excess(window: Window) -> tuple[float, str]:
    """By how much the gradient is too large, and what shows in it besides the world size.

    It is the ratio of the diagnosis, or that and a wrong division by K (``is_off_by``).
    """
    of_ranks, whole = float(window.balance.ratio), factor(window)
    if Near(whole, window.facts.tolerance)(of_ranks):
        return of_ranks, ""
    return whole, f", and one of K = {window.facts.micro_batches_of(window.balance.objective)}"


def _steps_alone(facts: StepFacts) -> bool:
    """Whether each rank steps on its own gradients, and no wrapper should have combined them."""
    records = facts.records.values()
    return facts.all_reduce is None and all(r.wrapper is None and r.sync == "none" for r in records)


def _not_added_up(window: Window, excess: float) -> Outcome:
    """Or the ranks train apart on purpose, and the loss has one division too many."""
    if unwaited(window.facts):
        return not_measured("the step does not wait for the all-reduce of the gradients")
    ranks, times = window.facts.run.world_size, significant(1 / excess)
    communicates = any(r.collectives_after for r in window.facts.records.values())
    missing = "is missing, or the step does not wait for it" if communicates else "is missing"
    return finding(
        "warning",
        f"Each of {ranks} ranks steps on its own gradient, {times} times too small",
        f"The balance of each rank is {significant(balance(window))}, and it does not step on "
        "combined gradients. If the loss is divided by what all ranks count, the all-reduce that "
        f"adds up the gradients {missing}; ranks that average their models instead divide by what "
        f"each of them counts. If not, there is one division too many by {times}"
        f"{_alone_in_window(window)}. {constant_factor_effect(excess, window.facts)}.",
        FIX_BY_HAND_SUM,
        balance=round(balance(window), 6),
        world_size=ranks,
        factor=round(excess, 6),
    )


def _added(window: Window, objective: Objective) -> Outcome:
    ranks, objectives = window.facts.run.world_size, window.facts.objectives
    name, main = objective_name(objective, objectives), objective_name(objectives[0], objectives)
    needed = f", as the {main} needs, which is divided by what all ranks hold"
    return finding(
        "warning",
        f"The {name} is added by each of the {ranks} ranks",
        f"The ranks' gradients are added up{needed if shows(window, *NORMALISED) else ''}. The "
        f"{name} is the same on every rank: its weight is {ranks} times its coefficient, and grows "
        "with the number of ranks.",
        FIX_OF_PENALTY,
        objective=name,
        world_size=ranks,
        factor=ranks,
    )


def _ambiguous(window: Window, ranks: int) -> Outcome:
    return finding(
        "warning",
        f"The loss is multiplied by {ranks}, which is also the number of ranks",
        f"The balance over {ranks} ranks is {significant(balance(window))}, and a constant in "
        "front of the loss explains it. If this constant is the world size, it is one factor too "
        "many: the ranks' gradients are averaged already. If it is an intended weight, declare "
        f"scale={declared(window) * ranks:.6g}. "
        f"{constant_factor_effect(factor(window), window.facts)}.",
        _fix(window),
        balance=round(balance(window), 6),
        world_size=ranks,
        factor=round(factor(window), 6),
    )


def _fix(window: Window) -> str:
    if _multiplies_later(window) or _divides_later(window):
        return of_plain_loop(FIX_AVERAGED, window.facts, NOTHING_FURTHER)
    if window.facts.divisor is not None:
        by_framework = framework(window.facts.run) != "plain"
        fix = SUM_OVER_WINDOW if by_framework else FIX_BY_DIVISOR
        return fix_of_tokens(fix, window.balance.objective)
    if _weighs_ranks(window.facts):
        return FIX_BY_HAND_WEIGHTED
    if window.balance.evidence:  # one factor R more or less does not correct it
        return SUM_OVER_WINDOW
    if _may_be_of_k(window):
        fixes = ONE_OF_BOTH_MORE if factor(window) < 1 else ONE_OF_BOTH_LESS
    else:
        fixes = ONE_WORLD_SIZE_MORE if factor(window) < 1 else ONE_WORLD_SIZE_LESS
    return factor_fix(fixes, window.facts, window.balance.objective)


def _may_be_of_k(window: Window) -> bool:
    """Whether the factor of the averaged ranks may be one of K, too: in all windows, both are
    equal, and no constant in front of the loss or after backward shows which of them it is."""
    facts, objective = window.facts, window.balance.objective
    counts = {facts.micro_batches_of(objective), *(c.micro_batches for c in window.past)}
    others = (facts.divisor, facts.all_reduce_factor, window.balance.evidence or None)
    later = _multiplies_later(window) or _divides_later(window) or _weighs_ranks(facts)
    is_shown = shows(window, "world_or_weight") or later or any(each is not None for each in others)
    return facts.averaged and counts == {facts.run.world_size} and not is_shown


def _multiplies_later(window: Window) -> bool:
    """Whether the loop multiplies the average by R. With K = R, a sum may lack its division by K:
    then that factor may be right."""
    facts, objective = window.facts, window.balance.objective
    ranks = facts.run.world_size
    may_lack_k = facts.micro_batches_of(objective) == ranks
    if may_lack_k and not (objective is not None and is_reduced_by_mean(objective)):
        return False
    return multiplied_later(facts, ranks)


def _divides_later(window: Window) -> bool:
    """Whether the loop divides the average by R, which is not the number of micro-batches."""
    facts, ranks = window.facts, window.facts.run.world_size
    of_k = facts.micro_batches_of(window.balance.objective) == ranks
    return not of_k and multiplied_later(facts, 1 / ranks)


def _weighs_ranks(facts: StepFacts) -> bool:
    """Whether the loop multiplies the gradients of each rank by another factor."""
    return facts.all_reduce is not None and bool(facts.all_reduce.factors)


def _fix_by_hand(window: Window, loop_factor: float) -> str:
    """The average or the sum of the ranks' gradients, whichever the loss needs."""
    if _groups(window.facts):
        return FIX_ACROSS_GROUPS
    if window.facts.record.wrapper == "ddp" and window.facts.record.before_hooks:
        return FIX_OF_HOOK
    ranks, right = window.facts.run.world_size, Near(loop_factor / factor(window), WEIGHT_HALF)
    if right(1.0):
        return FIX_BY_HAND_SUM
    return FIX_BY_HAND_AVERAGE if right(1 / ranks) else SUM_OVER_WINDOW


def _groups(facts: StepFacts) -> int:
    """How many groups of ranks the loop combines, over each of which DDP averages."""
    return facts.all_reduce.of_groups if facts.all_reduce is not None else 0


def _cause(window: Window) -> str:
    if window.balance.evidence:
        return f": {window.balance.evidence}"
    loop_factor, (excess, _) = window.facts.all_reduce_factor, _excess(window)
    groups = _groups(window.facts)
    if loop_factor is not None and groups:
        wrapper = "FSDP2" if window.facts.record.wrapper == "fsdp2" else "DDP"
        of_groups = loop_factor * window.facts.run.world_size / groups
        return (
            f": {wrapper} averages over each of {groups} groups of ranks, and the loop multiplies "
            f"the sum of their gradients by {significant(of_groups)}; the right factor for this "
            f"loss is {significant(of_groups / excess)}"
        )
    if loop_factor is not None:
        near = Near(loop_factor, window.facts.tolerance)  # the samples are rounded
        exact = (n for n in (1.0, 1 / window.facts.run.world_size) if near(n))
        loop_factor = next(exact, loop_factor)
        return (
            f": the loop multiplies the sum of the ranks' gradients by {significant(loop_factor)}; "
            f"the right factor for this loss is {significant(loop_factor / excess)}"
        )
    if window.facts.divisor is not None:
        divisor = window.facts.divisor
        return (
            f": FSDP divides the sum of the ranks' gradients by {significant(divisor)}; this loss "
            f"needs a division by {significant(divisor * excess)}"
        )
    if _multiplies_later(window):
        return (
            f": the loop multiplies the gradients by {window.facts.run.world_size} after the "
            "wrapper has averaged them, as an all-reduce does that adds up what is equal on all "
            "ranks"
        )
    if _divides_later(window):
        return (
            f": the loop divides the gradients by {window.facts.run.world_size} after the wrapper "
            "has averaged them"
        )
    operation = "division" if excess < 1 else "multiplication"
    if _weighs_ranks(window.facts):
        return f", which matches one {operation} too many of the weighted sum over the ranks"
    averaged = ", and the ranks' gradients are averaged" if window.facts.averaged else ""
    if _may_be_of_k(window):
        return (
            f", which matches one {operation} too many by the world size{averaged}. Or "
            f"{'K divides the loss once too often' if excess < 1 else 'K does not divide the loss'}"
            ": there are as many micro-batches as ranks"
        )
    return (
        f", which matches one {operation} too many by the world size{averaged}"
        f"{_alone_in_window(window) if excess < 1 else ''}"
    )


def _alone_in_window(window: Window) -> str:
    if window.facts.micro_batches_of(window.balance.objective) != 1:
        return ""
    return ". Or the loss is divided by as many micro-batches, and each is stepped on alone"
