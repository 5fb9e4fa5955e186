"""Names the cause of a window's balance B, once for all rules that read it.

B is the sum of all token weights of the window: 1 under the token-mean contract, where each of N
tokens weighs 1/N. A mistake in the divisor multiplies B by a recognisable number. K is the number
of micro-batches in the window and R the number of ranks. In the third row, the window holds k
micro-batches, and K is the usual number:

=====================  ======  ==================================================================
mistake                B       why
=====================  ======  ==================================================================
not divided by K       K       K means, each of which has a sum of weights of 1, are added
divided by K twice     1/K     a loss with B = 1 is divided by K again
usual K, short window  k/K     k means, each with a sum of weights of 1/K, are added
world size             R, 1/R  the average over ranks is undone once too often, or not undone
sum over tokens        N       N tokens weigh 1 each
all positions counted  N/P     N tokens weigh 1/P each; P positions include ignored ones
=====================  ======  ==================================================================

Several mistakes can give the same number. ``explanations.explain`` tries them from the most
specific evidence to the least specific. If nothing separates two explanations, the harmless one
wins. A bare number is a cause only if it explains every window with a wrong balance.

Each objective of the window has its own diagnosis. That of the first, which has the most gradient
weight, is about its balance. The balance of a further one contains its coefficient, which is only
known where it can be read: there, only a division that the others have is missed.
"""

from __future__ import annotations

from collections.abc import Sequence

from gradledger_monitor.model.losses.repeated import (
    backwards_for_inputs,
    has_layer_beside_parts,
    have_equal_losses,
    passes_of_one_loss,
)
from gradledger_monitor.model.objectives import Objective, fair_together
from gradledger_monitor.model.step_facts import StepFacts
from gradledger_monitor.rules.balance.after_backward import applied_again
from gradledger_monitor.rules.balance.beside import smooths_ignored
from gradledger_monitor.rules.balance.counts import is_multiplied_by_own_samples
from gradledger_monitor.rules.balance.divisors import (
    MEAN_OF_SUMS,
    is_mean_of_sums_alone,
    is_one_whole_mean,
)
from gradledger_monitor.rules.balance.episodes import (
    may_be_of_episodes,
    may_pass_on_gradients,
    weighs_elements,
)
from gradledger_monitor.rules.balance.evidence import (
    Near,
    constant_over_positions,
    divides_by_samples,
    has_known_unit,
    holds_the_whole_window,
    is_multiplied_by_samples,
    starts_from_earlier_losses,
)
from gradledger_monitor.rules.balance.explanations import explain, multiplied_by
from gradledger_monitor.rules.balance.further import (
    counts_ignored,
    divide_each,
    is_added_by_every_rank,
    is_divided_twice,
    is_in_one_micro_batch,
    is_right,
    is_undivided_mean,
    lacks_the_division_of,
    lacks_the_same_division,
    may_weigh_one_over_k,
    of_undivided,
    shape,
    window_of_the_same_weight,
)
from gradledger_monitor.rules.balance.history import in_usual_unit
from gradledger_monitor.rules.balance.masked import (
    CONSTANT_SHARE,
    MASKED,
    MASKED_TOKENS,
    by_ignored_beside,
    constant_beside_padding,
    counts_all_targets,
    masked_may_count,
    may_count_more,
)
from gradledger_monitor.rules.balance.patterns import (
    FAIR,
    NORMALISED,
    NOT_MEASURED,
    ONE_MORE,
    STEADY,
    Closed,
    Diagnosis,
    Pattern,
    is_fair,
)
from gradledger_monitor.rules.balance.several_losses import (
    AS_MANY_LOSSES,
    PARTS_OR_TASKS,
    may_divide_by_their_number,
    why_undecided,
)

OWN_LOSSES = "each backward has a separate loss (such as real and fake batches of a GAN critic)"
WEIGHTED_INSIDE = "the loss gives the elements of one micro-batch different weights"
NO_ELEMENTS = f'{WEIGHTED_INSIDE}; if that is intended, declare contract="sample"'
NORMALISED_WEIGHTS = (
    "the loss weighs its elements, and may have divided these weights by their sum in each "
    'micro-batch, so that its sum may be a weighted mean; if it is, declare contract="sample"'
)
EPISODES = (
    "a loss weighs its elements, as a policy loss does the steps of an episode: each micro-batch "
    "may be an episode, whose steps are averaged or added up on purpose; if it is, declare "
    'contract="sample"'
)
OF_SEQUENCES = (
    "the loss weighs its tokens, and each micro-batch is divided by its number of tokens; how many "
    "sequences it holds is not known, and the mean of one, or of the group of a prompt, may be "
    'intended; if it is, declare contract="sequence"'
)
BY_SAMPLES = (
    "the loss is multiplied by a number that equals its batch size, so it may be meant as a sum "
    'over samples, which no accumulation divides; if it is, declare contract="sample"'
)
TIMES_SAMPLES = "Each loss is multiplied by its batch size, as a sum over samples is"
PASSED_ON = (
    "the loss may be a product with cached gradients, which add up without a division; if it is, "
    'declare contract="sample"'
)
WHOLE_WINDOW = (
    "every micro-batch has the same loss, which may be that of the whole window with cached "
    'features; if its gradients add up on purpose, declare contract="sample"'
)
LAYER_BESIDE_PARTS = (
    "every micro-batch has the loss of the whole window, with a gradient in one of its K cached "
    "parts and in a layer beside them: those of the parts add up to that of the loss, and the "
    "layer has its whole gradient K times, so that no factor is right for both"
)
CACHED_PARTS = (
    "each backward reaches the parameters by one of K parts of its features, the other parts are "
    "cached, its value differs, and no target shows that the losses are separate: it may be the "
    "loss of the whole window with other dropout, or that of its part; if it is right that its "
    'gradients add up, declare contract="sample"'
)
ADDED_AGAIN = (
    "backwards of the window start from losses of the ones before: their gradients are added "
    "again; call backward on each loss once"
)
FOR_INPUTS = (
    "backwards of the batch that give a gradient to an input, as those of an adversarial attack "
    "do, add to the step: nothing shows whether they train, too; if they do not, zero their "
    'gradients before the last backward; if they do, declare contract="sample"'
)
CHANGED = (
    "the parameters changed between the backwards of the window, or each batch has two of them: "
    "their gradients may be added up on purpose, as in adversarial training"
)
NONLINEAR = (
    "the loss is a function of whole micro-batches that may be non-linear, and its weights differ"
)
OWN_RATE = (
    "the loop updates its parameters itself, so that a constant factor is a part of its learning "
    "rate"
)
OWN_RULE = (
    "the loop updates its parameters itself, and not by a multiple of the gradient: what a factor "
    "of the gradient does is not known"
)
OWN_SCHEDULE = (
    "the loop updates its parameters itself, with a learning rate that changes: it may contain a "
    "divisor of the gradient"
)
UNMATCHED = (
    "the micro-batches have different numbers of such losses, and nothing shows which of them are "
    "the same"
)
DIVIDED_INSIDE = (
    "the loss is divided inside a product with a function of the data, by K or by a count that is "
    "as large"
)
SAME_RATE = 0.01  # relative
# what a sum over the steps of an episode looks like, or a sum that a constant divides
OF_STEPS: tuple[Pattern, ...] = ("sum", "wandering", "stale", "padding")


def weighted_by_design(facts: StepFacts) -> str | None:
    """Why the weights of tokens are no mistake, if the run or its loss shows that."""
    if facts.run.contract in ("sequence", "sample"):
        return f"the run declares one weight per {facts.run.contract}"
    return OWN_LOSSES if facts.separate_losses else None


def why_no_loss_is_evaluated(facts: StepFacts) -> str | None:
    """Why the terms of a window are no losses with a count: single elements, or added again."""
    if weighs_elements(facts.terms):
        return EPISODES
    return ADDED_AGAIN if facts.adds_losses_again or applied_again(facts) else None


def diagnose(facts: StepFacts, past: Sequence[Closed]) -> list[Diagnosis]:
    """The one pattern that explains the balance of each objective, the heaviest objective first.

    One diagnosis without an objective if nothing of the window can be judged.
    """
    if facts.unmeasured:
        return [Diagnosis("by_design" if facts.is_of_changes else "unmeasured", facts.unmeasured)]
    if facts.factor_unmeasured and facts.step_rate is None:
        return [_without_factor(facts, facts.factor_unmeasured)]
    intended = weighted_by_design(facts)
    if intended == OWN_LOSSES and _are_left_over(facts):
        return [Diagnosis("unmeasured", FOR_INPUTS)]
    if intended:
        return [Diagnosis("by_design", intended)]
    if reason := why_no_loss_is_evaluated(facts):
        return [Diagnosis("unmeasured", reason)]
    if holds_the_whole_window(facts):
        return [Diagnosis("unmeasured", _why_of_the_whole_window(facts))]
    if facts.together is not None:
        return [_of_main(facts, facts.together, past)]
    if (divided := _divided_over_passes(facts)) is not None:
        return [divided]
    if not facts.objectives:
        return [Diagnosis("unmeasured", reason_without_objective(facts))]
    if undecided := why_undecided(facts, past):
        return [Diagnosis("unmeasured", undecided)]
    main, *further = facts.objectives
    if not further and not is_fair(facts, main):
        main = in_usual_unit(main, past)
    if facts.record.by_hand:
        first = _of_update_by_hand(facts, main, past)
        return [first, *[Diagnosis("coefficient", objective=o) for o in further]]
    first = _of_main(facts, main, past)
    if first.pattern in ("missing", "partial") and is_multiplied_by_samples(facts, main):
        first = Diagnosis("unmeasured", BY_SAMPLES, main)
    if first.pattern == "wandering" and is_multiplied_by_own_samples(facts, main, past):
        first = Diagnosis("constant", objective=main, evidence=TIMES_SAMPLES)
    of_several_losses = facts.parameters_changed or facts.two_of_each_batch
    if of_several_losses and first.pattern not in FAIR:
        return [Diagnosis("unmeasured", CHANGED, main)]
    if first.pattern in FAIR and _is_left_to_inputs(facts, main):
        return [Diagnosis("unmeasured", FOR_INPUTS)]
    right = [o for o in further if is_right(facts, o)]
    if first.pattern in ("constant", "pending", "sum", "unmeasured", "other_divisor"):
        first = _beside_a_divided_one(facts, main, right) or first
    others = [(o, _of_further(facts, o, first, past)) for o in further]
    of_any_weight = first.pattern == "constant" and not first.evidence
    if of_any_weight and not has_known_unit(main) and right:
        first = Diagnosis("coefficient", objective=main)
    return [first, *(_beside(facts, o, past, diagnosis) for o, diagnosis in others)]


def _is_left_to_inputs(facts: StepFacts, main: Objective) -> bool:
    """Whether backwards for inputs add to the step, and a loss is fair without them, or alone."""
    backwards = {index for index, _ in facts.applied}
    own = {term.micro_batch for term in main.terms}
    return own < backwards and _are_left_over(facts)


def _are_left_over(facts: StepFacts) -> bool:
    """Whether the first backwards give a gradient to an input, and the last one gives none.

    If all do, the input may be the output of a frozen layer, as for gradient checkpointing.
    """
    last = facts.applied[-1][1] if facts.applied else None
    reaches_none = last is not None and not last.reaches_input
    return reaches_none and backwards_for_inputs(facts.applied) > 0


def _divided_over_passes(facts: StepFacts) -> Diagnosis | None:
    """Both halves of one loss of the whole window, together, if its passes divide them."""
    passes = passes_of_one_loss(facts.applied)
    if passes < 2 or len(facts.objectives) < 2:
        return None
    intended = (facts.run.declared_scale or 1.0) / passes
    whole = fair_together(facts.objectives, facts.tolerance, intended)
    return None if whole is None else Diagnosis("double", objective=whole, ratio=1 / passes)


def _why_of_the_whole_window(facts: StepFacts) -> str:
    applied = facts.applied_by_rank.values()
    if any(map(has_layer_beside_parts, applied)):
        return LAYER_BESIDE_PARTS
    equal = all(have_equal_losses(record.micro_batches) for record in facts.records.values())
    return WHOLE_WINDOW if equal else CACHED_PARTS


def _beside_a_divided_one(
    facts: StepFacts, main: Objective, right: Sequence[Objective]
) -> Diagnosis | None:
    """The main loss may have most weight only because K divides another one, and not this one."""
    if not any(lacks_the_division_of(facts, main, o) for o in right):
        return None
    k, constant = facts.micro_batches_of(main), abs(main.coefficient or 1.0)
    if is_mean_of_sums_alone(facts, main):
        weight = main.ledger.balance / (facts.run.declared_scale or 1.0) / k
        return Diagnosis("missing", "", main, k, weight, MEAN_OF_SUMS)
    return Diagnosis(
        "missing", "", main, k, constant, multiplied_by(constant) if constant != 1 else ""
    )


def _without_factor(facts: StepFacts, reason: str) -> Diagnosis:
    """The loop may have changed single values after backward: clipping by value, decay, noise.

    If every objective was fair before, or several are together, as their mean is, the reduction is.
    What the change itself does is not judged.
    """
    objectives = facts.objectives if facts.changed_after_backward else []
    rest = [objective for objective in objectives if not is_fair(facts, objective)]
    if objectives and (not rest or _are_fair_together(facts, rest)):
        return Diagnosis("fair", objective=facts.objective)
    return Diagnosis("unmeasured", reason)


def _are_fair_together(facts: StepFacts, objectives: list[Objective]) -> bool:
    if any(o.is_penalty or o.weighted_inside for o in objectives):
        return False
    together = fair_together(objectives, facts.tolerance, facts.run.declared_scale or 1.0)
    whole = sum(len(objective.terms) for objective in objectives)
    return together is not None and len(together.terms) == whole and is_fair(facts, together)


def _of_main(facts: StepFacts, objective: Objective, past: Sequence[Closed]) -> Diagnosis:
    if objective.is_unmatched:
        return Diagnosis("unmeasured", UNMATCHED, objective)
    by_tokens = objective.weighted_inside and objective.reading.unit == "tokens"
    if by_tokens and not (
        objective.is_of_weighted_means(facts.tolerance) or is_one_weighted_mean(facts, objective)
    ):
        return Diagnosis("unmeasured", NO_ELEMENTS, objective)
    if starts_from_earlier_losses(objective):
        return Diagnosis("unmeasured", ADDED_AGAIN, objective)
    if (inside := divided_inside(facts, objective, past)) is not None:
        return inside
    if is_fair(facts, objective) and may_divide_by_their_number(facts, objective, past):
        return Diagnosis("unmeasured", AS_MANY_LOSSES, objective)
    whole = objective.reading.unit == "micro_batches"
    if objective.is_nonlinear and not is_fair(facts, objective) and is_one_whole_mean(objective):
        return Diagnosis("coefficient", objective=objective)
    if objective.is_nonlinear and (
        not objective.of_equal_micro_batches if whole else not is_fair(facts, objective)
    ):
        return Diagnosis("unmeasured", NONLINEAR, objective)
    if objective.reading.of_part and not is_fair(facts, objective):
        return Diagnosis("unmeasured", PARTS_OR_TASKS, objective)
    diagnosis = _beside(facts, objective, past, explain(facts, objective, past))
    masked = objective.weighted_inside and not objective.elements_count
    if masked and diagnosis.pattern in ("wandering", "early_step", "unprepared"):
        return Diagnosis("unmeasured", NO_ELEMENTS, objective)
    if diagnosis.pattern == "sum" and objective.has_normalised_weights(facts.tolerance):
        return Diagnosis("unmeasured", NORMALISED_WEIGHTS, objective)
    if diagnosis.pattern in OF_STEPS and may_be_of_episodes(facts, objective, past):
        return Diagnosis("unmeasured", EPISODES, objective)
    harmless = diagnosis.pattern in FAIR or diagnosis.pattern == "coefficient"
    if not harmless and may_pass_on_gradients(facts, objective):
        return Diagnosis("unmeasured", PASSED_ON, objective)
    intended = facts.run.declared_scale or 1.0
    explained = diagnosis.pattern in FAIR or diagnosis.evidence == CONSTANT_SHARE
    if not explained and masked_may_count(facts, objective, past, intended):
        return Diagnosis("unmeasured", MASKED, objective)
    varies = diagnosis.pattern in ("wandering", "other_divisor")
    counts_more = varies and may_count_more(facts, objective, past)
    if counts_more or (not explained and counts_all_targets(facts, objective)):
        by_contract = diagnosis.pattern not in NOT_MEASURED
        return Diagnosis("unmeasured", MASKED_TOKENS if by_contract else MASKED, objective)
    return diagnosis


def is_one_weighted_mean(facts: StepFacts, objective: Objective) -> bool:
    """Whether the weights that a loss gives the tokens of the only micro-batch add up to 1."""
    balance = objective.ledger.balance / (facts.run.declared_scale or 1.0)
    of_one_sign = all(term.loss_term.weight_size is None for term in objective.terms)
    return of_one_sign and len(objective.ledger.lines) == 1 and Near(balance, facts.tolerance)(1.0)


def _beside(
    facts: StepFacts, objective: Objective, past: Sequence[Closed], diagnosis: Diagnosis
) -> Diagnosis:
    """The diagnosis, unless the objective counts what the cross entropy on its logits ignores.

    Or a smoothing does that is a part of the cross entropy.
    """
    if diagnosis.pattern in NORMALISED and smooths_ignored(objective):
        return Diagnosis("smoothing", objective=objective)
    ignored = by_ignored_beside(facts, objective, past)
    if ignored is None:
        return diagnosis
    harmless = diagnosis.pattern in NORMALISED
    return ignored if harmless or ignored.pattern == "smoothing" else diagnosis


def divided_inside(
    facts: StepFacts, objective: Objective, past: Sequence[Closed]
) -> Diagnosis | None:
    """Of a product of functions of whole micro-batches, as of a loss and a gate that the model
    computes: B is K, and K divides a factor of each product, so that the balance of this is 1.

    A shorter window is divided by the usual K, and a count of the loss may be as large as K. If B
    is 1, and K divides twice, one of the two may be a count, too.
    """
    whole = objective.reading.unit == "micro_batches" and objective.is_nonlinear
    k, scale = facts.micro_batches_of(objective), facts.run.declared_scale or 1.0
    near = Near(objective.ledger.balance / scale, facts.tolerance)
    if not whole or k == 1 or not (near(k) or near(1.0)):
        return None
    full = next((c.micro_batches for c in reversed(past) if c.pattern in FAIR), k)
    if near(1.0):
        twice = divide_each(objective, {k}, times=2)
        return Diagnosis("unmeasured", DIVIDED_INSIDE, objective) if twice else None
    if not divide_each(objective, {k, full}):
        return None
    if full != k or any(k in shape(term) for term in objective.terms):
        return Diagnosis("unmeasured", DIVIDED_INSIDE, objective)
    return Diagnosis("fair", objective=objective)


def _of_update_by_hand(facts: StepFacts, objective: Objective, past: Sequence[Closed]) -> Diagnosis:
    """The loop updates its parameters itself: a constant divisor is a part of its learning rate.

    So B alone accuses nothing. If the loop follows its gradient with one learning rate, a B that
    differs between windows does: windows then have different weights per token.
    """
    balance, rate = objective.ledger.balance, facts.step_rate
    if not facts.factor_unmeasured and is_fair(facts, objective):
        return Diagnosis("fair", objective=objective)
    if rate is None:
        return Diagnosis("unmeasured", OWN_RULE, objective)
    earlier = [(c.balance, c.rate) for c in past if c.balance is not None and c.rate is not None]
    if not earlier:
        return Diagnosis("pending", ONE_MORE, objective)
    if all(_same(balance * rate, b * r) for b, r in earlier):
        return Diagnosis("coefficient", OWN_RATE, objective)
    if not all(_same(rate, r) for _, r in earlier):
        return Diagnosis("unmeasured", OWN_SCHEDULE, objective)
    diagnosis = _of_main(facts, objective, past)
    shown = ("sum", "wandering", "padding", "stale", "partial")
    if diagnosis.pattern in FAIR or diagnosis.pattern in shown:
        return diagnosis
    return Diagnosis("coefficient", OWN_RATE, objective)


def _same(number: float, other: float) -> bool:
    """Whether two numbers that were computed from changes of parameters are equal."""
    return abs(number - other) <= SAME_RATE * abs(other)


def _of_further(
    facts: StepFacts, objective: Objective, main: Diagnosis, past: Sequence[Closed]
) -> Diagnosis:
    """A further objective: without the division by K that the main one has, or with its weight.

    Or a loss whose divisor counts ignored targets, too, or those that the main one ignores.
    """
    if objective.is_unmatched:
        return Diagnosis("coefficient", objective=objective)
    lacks = main.pattern == "missing" and lacks_the_same_division(facts, objective)
    if is_fair(facts, objective) and not lacks:
        # a constant of 1/K may be the division, or a weight: beside a loss that is not divided, and
        # beside one that is divided in another way
        constant = main.pattern == "missing" and objective.coefficient is not None
        in_doubt = constant or may_weigh_one_over_k(facts, objective)
        return Diagnosis("coefficient" if in_doubt else "fair", objective=objective)
    if (inside := divided_inside(facts, objective, past)) is not None:
        return inside
    if lacks:
        return Diagnosis("term_missing", objective=objective, ratio=main.ratio)
    # whatever the main one is divided by: a penalty counts no tokens
    if main.pattern in STEADY and is_added_by_every_rank(facts, objective):
        return Diagnosis("term_world", objective=objective, ratio=facts.run.world_size)
    of_samples = main.objective is not None and divides_by_samples(facts, main.objective)
    k = facts.micro_batches_of(objective)
    if main.pattern == "constant" and is_undivided_mean(facts, objective):
        return Diagnosis("term_missing", objective=objective, ratio=k)
    normalised = main.pattern in NORMALISED or (main.pattern == "wandering" and of_samples)
    if not normalised or is_in_one_micro_batch(main.objective, objective):
        return Diagnosis("coefficient", objective=objective)
    padding = constant_beside_padding(facts, objective, past)
    if counts_ignored(facts, objective):
        padding = constant_over_positions(facts, objective) or 1.0
    if padding:
        return Diagnosis("term_padding", objective=objective, constant=padding)
    if (undivided_here := of_undivided(facts, objective, past)) is not None:
        return undivided_here
    other = window_of_the_same_weight(facts, objective, past)
    if other is not None:
        weighs = f"Each of its micro-batches weighs the same in windows of {other} and of {k}"
        return Diagnosis("term_missing", objective=objective, ratio=k, evidence=weighs)
    if is_divided_twice(facts, objective):
        return Diagnosis("term_double", objective=objective, ratio=1 / k)
    return Diagnosis("coefficient", objective=objective)


def reason_without_objective(facts: StepFacts) -> str:
    """Why a window with terms has no objective."""
    if any(term.weight for term in facts.terms):
        return "the sum of the weights overflows or underflows"
    return "no element has a weight"
