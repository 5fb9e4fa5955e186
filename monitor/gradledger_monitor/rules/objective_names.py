"""What an objective is called in texts: by its loss, in the words of PyTorch's documentation."""

from __future__ import annotations

from collections.abc import Sequence

from gradledger_monitor.model.objectives import TOGETHER, Objective

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
    """The name of one of a window's objectives, e.g. ``second cross entropy``, without article."""
    if objective.name == TOGETHER:
        return "sum of all losses"
    if objective.is_penalty:
        return "penalty on the parameters"
    words = _loss(objective)
    same = [o.name for o in objectives if not o.is_penalty and _loss(o) == words]
    if len(same) < 2:
        return words
    number = sorted(same).index(objective.name)
    return f"{_ORDINALS[number]} {words}" if number < len(_ORDINALS) else f"{words} {number + 1}"


def _loss(objective: Objective) -> str:
    inside = objective.terms[0].loss_term.of
    if inside:
        return f"function of the {_words(inside)}"
    return _words(objective.kind)


def _words(kind: str) -> str:
    """A loss that is not in the table is called as its autograd node."""
    return next((w for start, w in _LOSSES.items() if kind.startswith(start)), kind)
