"""Names the loss terms of a window, so that those of one objective have one name in all of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from operator import attrgetter

from gradledger_monitor.ingest.schema import MicroBatch, Term
from gradledger_monitor.model.numbers import number
from gradledger_monitor.model.objectives import PENALTY
from gradledger_monitor.model.readings import WeightedTerm

DIVERGENCE = "KlDivergence"
REDUCTIONS = ("MeanBackward", "SumBackward")  # losses without targets
_KIND = attrgetter("kind")
IndexedMicroBatches = list[tuple[int, MicroBatch]]  # with their index in the record


def tasks_of(applied: IndexedMicroBatches) -> dict[int, int]:
    """The task of each micro-batch (by index) that has one loss, numbered from 0 in this window.

    A loop may call backward for each of its tasks. If they share a head, they also share the labels
    and differ in their weights or in the lines that call backward, or each has its own constant
    target, as real and fake. Empty if one of these losses shows no task: then nothing separates the
    micro-batches. If one of them has several losses, only those that are unlike these are separate.
    """
    alone = {index: m for index, m in applied if len(m.terms) == 1}
    heads = {index: m.terms[0].head for index, m in alone.items()}
    if len(alone) < len(applied):
        return _lone_losses(applied)
    if calls := _calls_on_the_same_labels(alone):
        return calls
    if not heads or None in heads.values() or 0 in heads.values():
        return {}
    tasks: dict[object, int] = {}
    targets = constant_targets(applied)
    weights = [] if targets else _weights_on_the_same_labels(alone.values())
    return {
        index: tasks.setdefault((heads[index], targets.get(index), _number(m, weights)), len(tasks))
        for index, m in alone.items()
    }


def constant_targets(applied: IndexedMicroBatches) -> dict[int, float]:
    """The target of each micro-batch (by index), as a fingerprint, if each has a constant one.

    Fingerprints also depend on the number of targets: empty if the micro-batches differ in it, or
    if one of them has several losses.
    """
    targets: dict[int, float] = {}
    for index, m in applied:
        target = number(m.fingerprint)
        same_size = len(m.terms) == 1 and m.terms[0].size == applied[0][1].terms[0].size
        if target is None or not same_size or not has_constant_targets(m):
            return {}
        targets[index] = target
    return targets


def micro_batches_of(
    applied: Mapping[int, IndexedMicroBatches], terms: Sequence[WeightedTerm]
) -> IndexedMicroBatches:
    """The micro-batches that have these terms of one objective, on the first rank of them."""
    rank = terms[0].rank
    indices = {term.micro_batch for term in terms if term.rank == rank}
    return [pair for pair in applied[rank] if pair[0] in indices]


def may_be_separate(applied: IndexedMicroBatches, tasks: Collection[int]) -> bool:
    """Whether constant targets leave open if backwards are one loss, accumulated, or several.

    The backwards of two discriminators look like those of one. Micro-batches with equal targets are
    of one loss if one layer computes them (``tasks`` is not empty, or it is that of the first of
    several losses), or if it is a cross entropy: a contrastive loss has its positive example in a
    fixed column.
    """
    if len(applied) < 2 or not all(has_constant_targets(m) for _, m in applied):
        return False
    if tasks and len(set(constant_targets(applied).values())) == 1:
        return False
    if _are_of_one_task(applied):
        return False
    kinds = {t.kind for _, m in applied for t in m.terms if not t.kind.startswith(REDUCTIONS)}
    return not all(kind.startswith("NllLoss") for kind in kinds)


def _are_of_one_task(applied: IndexedMicroBatches) -> bool:
    """Whether one layer computes the first loss of each micro-batch, which has equal targets."""
    several = all(len(m.terms) > 1 for _, m in applied)
    with_targets = not any(m.terms[0].kind.startswith(REDUCTIONS) for _, m in applied)
    alike = {(m.task, number(m.fingerprint)) for _, m in applied}
    return several and with_targets and len(alike) == 1 and None not in alike.pop()


def have_separate_calls(applied: IndexedMicroBatches) -> bool:
    """Whether the script calls backward at several lines, and equally often at each of them.

    So it does for each of several losses: real and fake batches, domains, clean and noisy data. A
    loop that accumulates has one line, or another one for the last micro-batch alone, which of two
    micro-batches is known by ``no_sync``.
    """
    counts = Counter(m.call for _, m in applied)
    if len(counts) < 2 or None in counts or len(set(counts.values())) > 1:
        return False
    return all(m.wrapper != "no_sync" for _, m in applied)


def has_constant_targets(micro_batch: MicroBatch) -> bool:
    """Whether all targets are equal, of a term with more than one: a single target always is."""
    if not micro_batch.constant_target or micro_batch.consecutive_target:
        return False
    return any((t.size or 0) > 1 for t in micro_batch.terms)


def _weights_on_the_same_labels(micro_batches: Collection[MicroBatch]) -> list[float]:
    """The coefficients of the losses on each set of labels, if there are several; else none.

    Each set of labels must have one backward for each of them.
    """
    by_labels: dict[float, list[float]] = {}
    for m in micro_batches:
        labels, coefficient = number(m.fingerprint), number(m.terms[0].coefficient)
        if labels is None or coefficient is None or m.constant_target:
            return []
        by_labels.setdefault(labels, []).append(coefficient)
    first, *others = (sorted(each) for each in by_labels.values())
    distinct = len(set(first)) == len(first) > 1
    return first if distinct and all(other == first for other in others) else []


def _calls_on_the_same_labels(micro_batches: Mapping[int, MicroBatch]) -> dict[int, int]:
    """A number for the call of each micro-batch (by index), if each set of labels has all of them.

    Parts of one batch have different labels, so these are several losses of the same data: such as
    of clean and of noisy inputs. Backward called again on one loss has no other one.
    """
    by_labels: dict[float, Counter[int]] = {}
    numbers: dict[int, int] = {}
    for m in micro_batches.values():
        labels = number(m.fingerprint)
        if labels is None or m.call is None or m.terms[0].again:
            return {}
        numbers.setdefault(m.call, len(numbers))
        by_labels.setdefault(labels, Counter()).update([m.call])
    counts = by_labels.values()
    all_calls = all(len(c) == len(numbers) and len(set(c.values())) == 1 for c in counts)
    constant = all(m.constant_target for m in micro_batches.values())
    if len(numbers) < 2 or constant or not all_calls:
        return {}
    return {index: numbers[m.call] for index, m in micro_batches.items() if m.call is not None}


def _number(micro_batch: MicroBatch, weights: list[float]) -> int:
    coefficient = number(micro_batch.terms[0].coefficient)
    return weights.index(coefficient) if coefficient is not None and weights else 0


def _lone_losses(applied: IndexedMicroBatches) -> dict[int, int]:
    """A number for the loss of each micro-batch (by index) that has one, and one unlike all others.

    A loop may call backward for a further loss, such as a penalty on the gradient of a critic. It
    is one of the several losses of the other micro-batches only if one of the same kind has the
    same reduction and is divided likewise.
    """
    several = [term for _, m in applied if len(m.terms) > 1 for term in m.terms]
    kinds = {term.kind for term in several}
    alike = {(term.kind, term.reduction, term.undivided) for term in several}
    most = max((len(m.terms) for _, m in applied), default=0)
    alone = [(index, m.terms[0]) for index, m in applied if len(m.terms) == 1]
    return {
        index: most
        for index, term in alone
        if term.kind in kinds and (term.kind, term.reduction, term.undivided) not in alike
    }


Form = tuple[float | None, str, bool | None]  # coefficient, reduction, and if nothing divides it
# Of a kind, the numbers of the losses of each form. Losses of one form that are several, but not in
# each micro-batch, have one number: nothing matches them. Empty: the forms match no loss.
Forms = dict[str, dict[Form, list[int]]]


def forms_of(
    applied: Mapping[int, IndexedMicroBatches], tasks: Mapping[int, Mapping[int, int]]
) -> Forms:
    """The kinds of which some micro-batches have fewer losses, so that their order matches none.

    A detector has no class loss for a scale without an object. The form of a loss matches it, if
    the micro-batch with the most losses has all forms of the others.
    """
    micro_batches = [
        m.terms for rank, of_rank in tasks.items() for i, m in applied[rank] if not of_rank.get(i)
    ]
    kinds = [tuple(map(_KIND, terms)) for terms in micro_batches]
    if len(set(kinds)) < 2:
        return {}
    forms: Forms = {}
    for kind in sorted({kind for each in kinds for kind in each}):
        of_kind = [
            [_form(t) for t in terms if _is_single(t, kind, terms)] for terms in micro_batches
        ]
        if len({len(each) for each in of_kind if each}) > 1:
            forms[kind] = _numbers([each for each in of_kind if each])
    return forms


def _numbers(micro_batches: list[list[Form]]) -> dict[Form, list[int]]:
    """The numbers of the losses of each form, as in the micro-batch with the most losses."""
    most = max(micro_batches, key=len)
    counts = [Counter(each) for each in micro_batches]
    if not all(count <= Counter(most) for count in counts):
        return {}
    numbers: dict[Form, list[int]] = {}
    for index, form in enumerate(most):
        numbers.setdefault(form, []).append(index)
    everywhere = {form for form in numbers if len({count[form] for count in counts}) == 1}
    return {form: all_ if form in everywhere else all_[:1] for form, all_ in numbers.items()}


def _form(term: Term) -> Form:
    return number(term.coefficient), term.reduction, term.undivided


def _is_single(term: Term, kind: str, terms: Sequence[Term]) -> bool:
    """Whether a term of a micro-batch is of this kind, and no part of another loss: on no head.

    That of a loss which is alone is its task.
    """
    on_a_head = len(terms) > 1 and term.head is not None and kind != DIVERGENCE
    return term.kind == kind and not term.penalty and not on_a_head


def named(terms: list[Term], task: int, forms: Forms | None = None) -> list[tuple[str, int, Term]]:
    """Terms with a name and a part number, e.g. NllLossBackward0#1: the second loss of its kind.

    Terms on one head with one coefficient and one reduction, divided or not, are parts of one loss
    (chunks), numbered from 1. Two tasks on one head usually differ. A term without a head is its
    own loss, and so is each divergence, which may be that from another teacher; of the penalties
    with one coefficient, the first stands for all. A loss that is alone has the number of its task.
    ``forms``: of ``forms_of`` the window, to match losses that some micro-batches lack.
    """
    forms = {} if task or forms is None else forms
    if len(terms) == 1 and terms[0].kind not in forms:
        return [(f"{terms[0].kind}#{task}", 1, terms[0])]
    named: list[tuple[str, int, Term]] = []
    losses_by_kind: dict[str, dict[object, int]] = {}
    of_form: Counter[tuple[str, Form]] = Counter()
    parts: dict[str, int] = {}
    for index, term in enumerate(terms):
        kind = PENALTY if term.penalty else term.kind
        losses, form = losses_by_kind.setdefault(kind, {}), _form(term)
        single = _is_single(term, kind, terms)
        ordinal = losses.setdefault(index if single else (term.head, *form), len(losses))
        if single and kind in forms:
            numbers = forms[kind].get(form, [0])
            ordinal = numbers[min(of_form[kind, form], len(numbers) - 1)]
            of_form[kind, form] += 1
        name = f"{kind}#{ordinal}"
        parts[name] = parts.get(name, 0) + 1
        named.append((name, parts[name], term))
    return named


def tokens_of(micro_batch: MicroBatch) -> float:
    """The tokens of the loss that has the most: a second loss counts the same ones again."""
    return max(tokens_by_loss(micro_batch).values(), default=0)


def tokens_by_loss(micro_batch: MicroBatch) -> dict[str, float]:
    """The tokens of each loss, without penalties."""
    tokens: dict[str, float] = {}
    for name, _, term in named(micro_batch.terms, 0):
        if not term.penalty:
            tokens[name] = tokens.get(name, 0) + (term.tokens or 0)
    return tokens
