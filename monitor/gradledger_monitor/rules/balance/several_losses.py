"""Several losses: whether their number divides each, and whether backwards are separate ones."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, pairwise

from gradledger_monitor.model.batch_size import has_a_loader_for_each_loss, has_whole_batches
from gradledger_monitor.model.losses.names import have_separate_calls, micro_batches_of
from gradledger_monitor.model.losses.repeated import IN_PARTS, may_be_in_parts
from gradledger_monitor.model.numbers import number
from gradledger_monitor.model.objectives import Objective, losses_together
from gradledger_monitor.model.readings import WeightedTerm
from gradledger_monitor.model.step_facts import StepFacts
from gradledger_monitor.model.token_ledger import total
from gradledger_monitor.model.tolerances import WEIGHT
from gradledger_monitor.rules.balance.evidence import (
    Near,
    coefficient_explains,
    is_bare_reduction,
    is_divided_by,
    reductions,
)
from gradledger_monitor.rules.balance.patterns import FAIR, Closed, Diagnosis, is_fair
from gradledger_monitor.rules.framework_fixes import framework

FURTHER_TOKENS = (
    "each loss of a micro-batch has the same number of tokens less than the one before, and is a "
    "mean: if they are parts of one loss, its tokens have different weights; if each predicts one "
    'token further, declare contract="sample"'
)
AS_MANY_LOSSES = (
    "the number of micro-batches divides as many losses: if it is the number of the losses, such "
    "as of classes or heads, K does not divide their mean; if it is K, declare scale=1"
)
PARTS_OR_TASKS = "several losses add up to one mean: parts of one loss or separate tasks, unknown"
CONSTANT_TARGETS = (
    "each micro-batch has one constant target, so that its backward may be a separate loss (such "
    "as one of two discriminators) or a part of one that accumulates; declare "
    'contract="sample" if the losses are separate, or contract="token" if they are one'
)
SEPARATE_CALLS = (
    "the script calls backward at several lines, equally often at each: they may be separate "
    "losses, such as real and fake batches or several domains, or one that is accumulated; declare "
    'contract="sample" if they are separate, or contract="token" if they are one'
)
WHOLE_BATCHES = (
    "each backward has as many samples as the one batch that the DataLoader delivered in the step: "
    "they may be separate losses of it, such as of several domains or tasks, or one that is "
    'accumulated; declare contract="sample" if they are separate, or contract="token" if they are '
    "one"
)
SEPARATE_LOADERS = (
    "several DataLoaders delivered the batches of the step: the backwards may be separate losses, "
    "such as of several domains or data sets, or one that is accumulated; "
    'declare contract="sample" if they are separate, or contract="token" if they are one'
)


def why_undecided(facts: StepFacts, past: Sequence[Closed]) -> str | None:
    """Why backwards may be separate losses, if some balance is not that of a right window.

    The contract "token" declares that they are one loss. An earlier window of several micro-batches
    that was right shows it, too: one that crosses the end of an epoch has batches of two iterators,
    and only those of the last one may be counted.
    """
    if facts.together is not None or facts.run.contract == "token":
        return None
    scale = facts.run.declared_scale or 1.0
    wrong = [
        o
        for o in facts.objectives
        if not is_fair(facts, o) and not coefficient_explains(facts, o, o.ledger.balance / scale)
    ]
    if wrong and may_be_in_parts(facts.record.micro_batches, facts.record.half_precision):
        return IN_PARTS
    if any(have_separate_calls(micro_batches_of(facts.applied_by_rank, o.terms)) for o in wrong):
        return SEPARATE_CALLS
    accumulates = any(c.pattern in FAIR and c.micro_batches > 1 for c in past)
    if wrong and not accumulates and all(map(has_whole_batches, facts.records.values())):
        return WHOLE_BATCHES
    if wrong and all(map(has_a_loader_for_each_loss, facts.records.values())):
        return SEPARATE_LOADERS
    return CONSTANT_TARGETS if wrong and facts.may_be_separate_losses else None


def by_losses_together(facts: StepFacts, main: Objective) -> Diagnosis | None:
    """Losses whose balances add up to 1: the mean of tasks with heads of their own, or parts.

    As many tasks as micro-batches would hide a division by K twice. Of losses that weigh their
    elements, the balance is not compared: that their number divides them all shows the mean.
    """
    scale = facts.run.declared_scale or 1.0
    for group in losses_together(facts.objectives):
        balance = total([objective.ledger.balance for objective in group])
        if not Near(balance / scale, facts.tolerance)(1.0):
            continue
        if is_mean_of(group, facts, main):
            return Diagnosis("coefficient", objective=main)
        return Diagnosis("unmeasured", PARTS_OR_TASKS, group[0])
    losses = [objective for objective in facts.objectives if not objective.is_penalty]
    weighs = any(objective.weighted_inside for objective in losses) and divides_all(losses)
    is_mean = weighs and is_mean_of(losses, facts, main)
    return Diagnosis("coefficient", objective=main) if is_mean else None


def may_divide_by_their_number(
    facts: StepFacts, objective: Objective, past: Sequence[Closed]
) -> bool:
    """Whether a loss with a balance of 1 may be one of K losses that their number divides, not K.

    The mean over K classes of a Lovasz loss is so, and that of K modules which compute a loss each.
    A fair window of another K shows that K divides, and so does a framework that divides itself.
    """
    k = facts.micro_batches_of(objective)
    group = [each for each in facts.objectives if each.kind == objective.kind]
    modules = {term.loss_term.module for each in group for term in each.terms}
    divided = all(o.coefficient is None and (is_divided_by(o, k) or _averages(o, k)) for o in group)
    whole = all(o.reading.unit == "micro_batches" for o in group)
    alike = len(modules) == k or (whole and len(modules) == 1)
    if len(group) != k or k == 1 or objective not in group or not (divided and alike):
        return False
    shown = any(c.pattern in FAIR and c.micro_batches != k for c in past)
    divides = framework(facts.run) != "plain"
    return not (shown or divides or facts.run.declared_scale)


def _averages(objective: Objective, losses: int) -> bool:
    """Whether no number divides the means of a loss, but a mean over as many losses does."""
    if not objective.is_undivided or reductions(objective) != {"mean"}:
        return False
    shares = [term.tokens * term.weight / term.own_factor for term in objective.terms]
    return all(Near(share, WEIGHT)(1 / losses) for share in shares)


def are_divided_alone(losses: list[Objective], facts: StepFacts) -> bool:
    """Whether their number is all that divides the losses, and each backward has the same ones.

    Not if backwards are of different tasks, nor of bare means, as of the outputs of critics: what
    these mean, and whether they are separate losses, is unknown.
    """
    tasks = {m.task for applied in facts.applied_by_rank.values() for _, m in applied}
    return (
        len(tasks) == 1
        and None not in tasks
        and divides_all(losses)
        and all(is_divided_by(o, len(losses)) and not is_bare_reduction(o) for o in losses)
    )


def divides_all(losses: list[Objective]) -> bool:
    """Whether the number of losses divides each of them, and none has a weight in front."""
    terms = [term.loss_term for objective in losses for term in objective.terms]
    alike = all(term.coefficient is None for term in terms)
    return alike and all(len(losses) in map(number, term.divisors) for term in terms)


def is_mean_of(group: list[Objective], facts: StepFacts, main: Objective) -> bool:
    """Whether the main loss has its share of a mean of losses, none of which is a chunk of one.

    Of as many ranks as losses, a division by the ranks has the same balance; so has one by K in a
    window of one micro-batch, where Accelerate states that it accumulates.
    """
    balance = main.ledger.balance / (facts.run.declared_scale or 1.0)
    share = Near(balance, facts.tolerance)(1 / len(group))
    accumulates = facts.micro_batches_of(main) == len(group) or facts.record.accumulating
    if not share or accumulates:
        return False
    if _on_separate_heads(group):
        return True
    separate = all(_are_separate(one, other) for one, other in combinations(group, 2))
    return separate and facts.run.world_size != len(group)


def may_be_of_samples(facts: StepFacts, objective: Objective, objectives: list[Objective]) -> bool:
    """Whether a loss is one of several of one form, whose mean each micro-batch adds.

    Each is divided by its count, so all have equal total weights: each may be that of one sample,
    as of the images of a detector, or of packed documents. Tasks with separate heads are none, nor
    are chunks of one loss, which have one size but for the last.
    """
    group = [each for each in objectives if _form(each) == _form(objective)]
    terms = [term for each in group for term in each.terms]
    if len(group) == 1 and not _may_be_documents(terms, facts.tolerance):
        return False
    if len(group) > 1 and _on_separate_heads(group):
        return False
    whole = terms[0].tokens * terms[0].weight  # by element, of which a row may have several
    equal = Near(whole, facts.tolerance)
    loss = terms[0].loss_term
    columns = (loss.size or 0) / (loss.positions or 1) or 1.0
    losses = len(group) * max(term.part for term in terms)
    parts = losses * facts.micro_batches_of(objective) * facts.ranks_divisor
    share = Near(abs(objective.coefficient or 1.0) / parts, facts.tolerance)
    each_counts_once = share(whole) or share(whole / columns)
    return each_counts_once and all(equal(term.tokens * term.weight) for term in terms)


def _may_be_documents(terms: Sequence[WeightedTerm], tolerance: float) -> bool:
    """Whether each micro-batch has several losses, and those before its last one have two sizes.

    They are computed from parts of one result of the model: those of several forwards are of as
    many micro-batches. Chunks have the same sizes in each micro-batch. Nor may they be predictions
    of one token further each.
    """
    parts = _by_micro_batch(terms)
    results = [{term.loss_term.logits for term in each} for each in parts]
    if any(len(each) > 1 or None in each for each in results):
        return False
    sizes = [[term.loss_term.size or 0 for term in each[:-1]] for each in parts]
    alike = all(each == sizes[0] for each in sizes)
    documents = all(sizes) and not alike and any(len(set(each)) > 1 for each in sizes)
    return documents and not all(_shrink_by_one(each, tolerance) for each in parts)


def _by_micro_batch(terms: Sequence[WeightedTerm]) -> list[list[WeightedTerm]]:
    parts: dict[tuple[int, int], list[WeightedTerm]] = {}
    for term in terms:
        parts.setdefault((term.rank, term.micro_batch), []).append(term)
    return [*parts.values()]


def may_predict_further_tokens(objective: Objective, tolerance: float) -> bool:
    """Whether the losses of each micro-batch may be predictions of one token further each.

    The second of such losses has one token of each sequence less than the first, and so on, and
    each is a mean (Gloeckle et al. 2024, https://arxiv.org/abs/2404.19737, equation 2). Two losses
    are read as tasks already. Unequal weights of the first ones are a mistake in either case.
    """
    first = [term.weight for term in objective.terms if term.part == 1]
    if not first or not all(map(Near(first[0], tolerance), first)):  # the first may have no token
        return False
    return all(_shrink_by_one(terms, tolerance) for terms in _by_micro_batch(objective.terms))


def _shrink_by_one(terms: list[WeightedTerm], tolerance: float) -> bool:
    counts = [term.tokens for term in terms]
    differences = {first - second for first, second in pairwise(counts)}
    if len(differences) != 1 or min(differences) <= 0:
        return False
    equal = Near(terms[0].tokens * terms[0].weight, tolerance)
    return len(counts) > 2 and all(equal(term.tokens * term.weight) for term in terms)


def _form(objective: Objective) -> tuple[str, str, str | None]:
    loss = objective.terms[0].loss_term
    return loss.kind, loss.reduction, loss.of


def _on_separate_heads(group: list[Objective]) -> bool:
    heads = [{term.loss_term.head for term in objective.terms} for objective in group]
    of_one = all(len(each) == 1 and None not in each for each in heads)
    return of_one and len(set().union(*heads)) == len(group)


def _are_separate(one: Objective, other: Objective) -> bool:
    """Whether two losses have different heads, kinds or numbers of dimensions.

    Chunks of one loss have the same. In one dimension a row has one element.
    """
    if _on_separate_heads([one, other]):
        return True
    pair = [[term.loss_term for term in objective.terms] for objective in (one, other)]
    if len({(terms[0].kind, terms[0].of) for terms in pair}) == 2:
        return True
    flat = [{bool(term.rows) and term.rows == term.size for term in terms} for terms in pair]
    measured = all(term.rows and term.size for terms in pair for term in terms)
    return measured and all(len(each) == 1 for each in flat) and flat[0] != flat[1]
