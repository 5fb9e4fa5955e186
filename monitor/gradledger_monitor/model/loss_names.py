"""Names the loss terms of a window, so that those of one objective have one name in all of them."""

from __future__ import annotations

from gradledger_monitor.ingest.schema import MicroBatch, Term
from gradledger_monitor.model.numbers import number
from gradledger_monitor.model.objectives import PENALTY

IndexedMicroBatches = list[tuple[int, MicroBatch]]  # with their index in the record


def tasks_of(applied: IndexedMicroBatches) -> dict[int, int]:
    """The tasks of losses that are alone in their micro-batch, numbered from 0 in this window.

    A loop may call backward for each of its tasks. Empty if one of these losses shows no task: then
    nothing separates the micro-batches.
    """
    heads = dict.fromkeys(m.terms[0].head for _, m in applied if len(m.terms) == 1)
    return {} if None in heads or 0 in heads else {h: n for n, h in enumerate(heads) if h}


def named(terms: list[Term], tasks: dict[int, int]) -> list[tuple[str, int, Term]]:
    """Terms with a name and a part number, e.g. NllLossBackward0#1: the second loss of its kind.

    Terms on one head with one coefficient are parts of one loss (chunks), numbered from 1. Two
    tasks on one head usually differ in their coefficients. A term without a head is its own loss;
    of the penalties with one coefficient, the first stands for all. A loss that is alone has the
    number of its task.
    """
    if len(terms) == 1:
        return [(f"{terms[0].kind}#{tasks.get(terms[0].head or 0, 0)}", 1, terms[0])]
    named: list[tuple[str, int, Term]] = []
    losses_by_kind: dict[str, dict[object, int]] = {}
    parts: dict[str, int] = {}
    for index, term in enumerate(terms):
        kind = PENALTY if term.penalty else term.kind
        losses = losses_by_kind.setdefault(kind, {})
        single = term.head is None and not term.penalty
        loss = index if single else (term.head, number(term.coefficient))
        name = f"{kind}#{losses.setdefault(loss, len(losses))}"
        parts[name] = parts.get(name, 0) + 1
        named.append((name, parts[name], term))
    return named
