"""The words that the pages explain in place, and what evidence and statuses are called."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gradledger_web import formatting

GLOSSARY: dict[str, str] = {
    "balance": (
        "The sum of the weights of all tokens in a window, over all ranks. In a run that "
        "averages over tokens it is exactly 1. Twice that acts like twice the learning rate "
        "under SGD."
    ),
    "misallocation": (
        "The share of the gradient's weight that sits on the wrong tokens: 0 % when every "
        "token counts the same, towards 100 % when a few tokens decide everything."
    ),
    "token": (
        "One counted element of the loss: a text token, a sample or a pixel. Ignored and "
        "masked elements do not count."
    ),
    "micro-batch": (
        "One backward call. Several of them are accumulated before the optimizer steps."
    ),
    "window": ("All micro-batches between two steps of one optimizer."),
    "weight": ("How much one token's loss counts in the gradient that the optimizer applies."),
    "relative weight": (
        "A token's weight against the weight it would have if all tokens of the window shared "
        "the gradient alike: 1 is fair, 2 counts double."
    ),
    "token-weighted loss": (
        "The sum of all token losses divided by the number of tokens: what one large batch "
        "would have reported. It differs from the reported loss when micro-batch means are "
        "averaged."
    ),
    "gradient norm": ("The length (L2) of the gradient that the optimizer got."),
    "noise scale": (
        "How many tokens a batch needs until averaging more of them stops helping: the variance "
        "of a token's gradient over the squared length of the true one, estimated from the "
        "micro-batches of the last hundred steps or so."
    ),
    "watched": (
        "Steps of milliseconds are not all watched, so that the hooks keep to their share of the "
        "run's time: after the first 256, some in a row, and then none for a while. "
        "GRADLEDGER_OVERHEAD=full watches all."
    ),
    "collectives": (
        "Communication calls between ranks that ran inside this backward. Zero under no_sync."
    ),
    "verdict": (
        "Balanced: nothing found and everything structural was measured. Suspect: warnings. "
        "Broken: an error. Incomplete: nothing found, but something that matters could not be "
        "measured."
    ),
    "inhibited": (
        "A symptom of another finding. It stays visible, raises no alert, and should go away "
        "when its cause is fixed."
    ),
}

VERDICTS = {
    "balanced": "Balanced",
    "suspect": "Suspect",
    "broken": "Broken",
    "incomplete": "Incomplete",
}

STATUSES = {
    "ok": "ok",
    "finding": "finding",
    "not_applicable": "does not apply",
    "not_measured": "not measured",
}


@dataclass(frozen=True)
class Fact:
    """One piece of evidence, ready to be shown."""

    label: str
    text: str
    word: str | None = None  # the glossary entry that explains it
    many: bool = False  # a list: set smaller


_LABELS = {
    "balance": "balance B",
    "misallocation": "misallocation d",
    "misallocation_recent": "d, recent mean",
    "relative_weights": "relative weights \N{GREEK SMALL LETTER RHO}",
    "loss_reported": "reported loss",
    "loss_token": "token-weighted loss",
    "differ": "weights differ",
    "lr": "learning rate",
    "effective_lr": "effective learning-rate factor",
    "effective_lr_factor": "effective learning-rate factor",
    "micro_batches": "micro-batches",
    "world_size": "ranks",
    "norm": "gradient norm",
}
_WORDS = {
    "balance": "balance",
    "misallocation": "misallocation",
    "misallocation_recent": "misallocation",
    "relative_weights": "relative weight",
    "loss_token": "token-weighted loss",
    "micro_batches": "micro-batch",
    "tokens": "token",
    "norm": "gradient norm",
}
_SHARES = ("misallocation", "share", "fraction")
_HEADLINE = {"misallocation": 0.0, "balance": 1.0}  # what is said at the top, unless sound


def facts(evidence: dict[str, Any]) -> list[Fact]:
    """Evidence as a list of named facts, in the rule's own order."""
    return [_fact(key, value) for key, value in evidence.items() if value is not None]


def headline(evidence: dict[str, Any]) -> list[Fact]:
    """The one or two numbers that say how bad it is."""
    found = {key: evidence.get(key) for key in _HEADLINE}
    return facts({key: value for key, value in found.items() if value != _HEADLINE[key]})


def _fact(key: str, value: Any) -> Fact:
    label = _LABELS.get(key, key.replace("_", " "))
    return Fact(label, _text(key, value), _WORDS.get(key), isinstance(value, (list, tuple, dict)))


def _text(key: str, value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return formatting.count(value)
    if isinstance(value, float):
        share = any(word in key for word in _SHARES)
        return formatting.percent(value) if share else formatting.figure(value)
    if isinstance(value, (list, tuple)):
        return _listed([_text(key, item) for item in value])
    if isinstance(value, dict):
        return ", ".join(f"{name}: {_text(str(name), item)}" for name, item in value.items())
    return str(value)


def _listed(texts: list[str], longest: int = 12) -> str:
    shown = ", ".join(texts[:longest])
    return shown if len(texts) <= longest else f"{shown}, … ({len(texts)} in all)"
