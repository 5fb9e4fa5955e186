"""What an objective is called in texts, and each element that it counts.

The objective is called by its loss, in the words of PyTorch's documentation, and if there are
several, also by the module from whose output it is computed. An element is a token only if the loss
shows that; ``token`` remains the term for all of them in identifiers:

- of a cross entropy over sequences, with several targets for each sample: token;
- of a cross entropy with one target for each sample: sample;
- of a CTC loss: utterance;
- of all others, also of a cross entropy whose samples are not known: element.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache

from gradledger_monitor.ingest.schema import MicroBatch, Term
from gradledger_monitor.model.losses.names import tokens_by_loss
from gradledger_monitor.model.objectives import TOGETHER, Objective
from gradledger_monitor.model.step_facts import StepFacts
from gradledger_monitor.rules.balance.divisors import outer_constant
from gradledger_monitor.rules.balance.evidence import BY_INDEX, PICKS
from gradledger_monitor.rules.number_text import counted, significant

ELEMENT = "element"
_CAPITAL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_BY_UTTERANCE = "CtcLoss"
_IN_UNITS = {
    "rows": "row",
    "weighted_rows": "row",
    "positions": "position",
    "micro_batches": "micro-batch",
}
_BY_HAND = ("mean", "sum")  # which does not show what they are for
_ORDINALS = ("first", "second", "third", "fourth")
# By the beginning of the autograd node's name.
_LOSSES = {
    "NllLoss": "cross entropy",
    "SoftCrossEntropy": "cross entropy with soft targets",
    "LabelSmoothing": "label smoothing",
    "Gather": "cross entropy by hand",
    "Index": "cross entropy by hand",
    "MseLoss": "mean squared error",
    "SmoothL1Loss": "smooth L1 loss",
    "HuberLoss": "Huber loss",
    "BinaryCrossEntropy": "binary cross entropy",
    "KlDiv": "KL divergence",
    "CtcLoss": "CTC loss",
    "MeanBackward": "mean",
    "SumBackward": "sum",
    "NansumBackward": "sum",
    "declared": "declared loss",
}


def objective_name(objective: Objective, objectives: Sequence[Objective]) -> str:
    """The name of one of a window's objectives, without article.

    For example: cross entropy over `lm_head`, second cross entropy.
    """
    if objective.name == TOGETHER:
        return "sum of all losses"
    if objective.is_penalty:
        return "penalty on the parameters"
    losses = [o for o in objectives if not o.is_penalty]
    words = _loss(objective)
    same = [o.name for o in losses if _loss(o) == words]
    if len(losses) > 1 and _module(objective):
        words = _with_module(objective)
        same = [o.name for o in losses if _with_module(o) == words]
    if len(same) < 2:
        return words
    number = sorted(same, key=_number).index(objective.name)
    return f"{_ORDINALS[number]} {words}" if number < len(_ORDINALS) else f"{words} {number + 1}"


def needs_name(facts: StepFacts) -> bool:
    """Whether a text must state which loss it is about: the backwards have several.

    Some of them may reach other optimizers only.
    """
    return len(facts.objectives) > 1 or any(m.elsewhere for _, m in facts.applied)


def objective_list(some: Sequence[Objective], objectives: Sequence[Objective]) -> list[str]:
    """The names of some of a window's objectives; of many of one kind, the kind and how many.

    A loop over the steps of an episode has one loss for each.
    """
    kinds = Counter(_loss(objective) for objective in some if not objective.is_penalty)
    names: dict[str, None] = {}
    for objective in some:
        words = _loss(objective)
        if kinds[words] > len(_ORDINALS):
            names[f"{words} ({kinds[words]} of them)"] = None
        else:
            names[objective_name(objective, objectives)] = None
    return list(names)


def _number(name: str) -> int:
    """Of the name of an objective, ``NllLossBackward0#1``."""
    return int(name.rpartition("#")[2])


def described(name: str, objective: Objective) -> str:
    """The name of a mean or sum by hand, with how many elements it has and what multiplies it.

    Only for one window: how many they are may depend on the batch.
    """
    counts = {term.loss_term.elements for term in objective.terms}
    count = counts.pop() if len(counts) == 1 else None
    if _words(objective.kind) not in _BY_HAND or objective.is_penalty or not count:
        return name
    constant = outer_constant(objective)
    times = "" if constant is None else f", times {significant(constant)}"
    return f"{name} (of {counted(count, 'element')}{times})"


def _module(objective: Objective) -> str | None:
    modules = {term.loss_term.module for term in objective.terms}
    return modules.pop() if len(modules) == 1 else None


def _with_module(objective: Objective) -> str:
    words = _loss(objective)
    relation = "computed from" if words in _BY_HAND else "over"  # a mean over something is of it
    return f"{words} {relation} `{_module(objective)}`"


def _loss(objective: Objective) -> str:
    inside = objective.terms[0].loss_term.of
    if inside:
        return f"function of the {_words(inside)}"
    return _words(objective.kind)


@lru_cache(maxsize=256)
def _words(kind: str) -> str:
    """A loss that is not in the table is called as the function that made its autograd node.

    A custom function is a class of the script, whose node has no number: ``FusedLossBackward``.
    """
    function, _, number = kind.rpartition("Backward")
    others = function if function and not number else _CAPITAL.sub(" ", function or kind).lower()
    return next((w for start, w in _LOSSES.items() if kind.startswith(start)), others)


def element_name(objective: Objective | None) -> str:
    """What the shown reading of an objective counts, in the singular."""
    return ELEMENT if objective is None else counted_name(objective, objective.reading.unit)


def counted_name(objective: Objective, unit: str) -> str:
    """What an objective counts in some unit, in the singular."""
    if objective.kind.startswith(_BY_UTTERANCE):
        return "label" if unit == "positions" else _IN_UNITS.get(unit, "utterance")
    if unit not in ("tokens", "class_weight"):
        return _IN_UNITS.get(unit, ELEMENT)
    return _common(term.loss_term for term in objective.terms)


def element_of(micro_batches: Iterable[MicroBatch]) -> str:
    """What the losses of some micro-batches count, in the singular."""
    return _common(term for micro_batch in micro_batches for term in micro_batch.terms)


def of_tokens(micro_batch: MicroBatch) -> bool:
    """Whether one of its losses is known to be of several targets for each sample."""
    return any(_of_term(term) == "token" for term in micro_batch.terms)


def by_hand(micro_batch: MicroBatch) -> bool:
    """Whether one of its losses picks its targets itself; whether of tokens may not be known."""
    return any(term.kind.startswith(PICKS) for term in micro_batch.terms)


def counted_tokens(micro_batches: Sequence[MicroBatch]) -> tuple[int, str]:
    """How many tokens some micro-batches hold, as a number and in words.

    If their losses count different numbers, it is those of the loss with the most.
    """
    counts = [tokens_by_loss(micro_batch) for micro_batch in micro_batches]
    tokens = round(sum(max(each.values(), default=0) for each in counts))
    element = element_of(micro_batches)
    differ = any(len(set(each.values())) > 1 for each in counts)
    of_one = f" of the loss with the most {element}s" if differ else ""
    return tokens, f"{counted(tokens, element)}{of_one}"


def _common(terms: Iterable[Term]) -> str:
    names = {_of_term(term) for term in terms}
    return names.pop() if len(names) == 1 else ELEMENT


def _of_term(term: Term) -> str:
    if term.kind.startswith(_BY_UTTERANCE):
        return "utterance"
    if not term.kind.startswith(BY_INDEX) or term.size is None:
        return ELEMENT
    if term.samples is not None:
        return "token" if term.samples < term.size else "sample"
    # (N, T) has as many positions but for the last dimension as rows, an image (N, H, W) more
    is_sequence = term.rows is not None and term.positions == term.rows < term.size
    return "token" if is_sequence else ELEMENT
