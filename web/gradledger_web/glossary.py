"""Texts that pages and reports share: tooltips, verdicts, statuses and the labels of evidence."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from gradledger_web import formatting

GLOSSARY: dict[str, str] = {
    "balance": (
        "The sum of the weights of all tokens in a window, over all ranks. It is exactly 1 in a "
        "run that averages over tokens. Under SGD, a balance of 2 acts like twice the learning "
        "rate."
    ),
    "misallocation": (
        "The share of the gradient weight that is on the wrong tokens: 0% if every token has "
        "equal weight, close to 100% if a few tokens determine the gradient."
    ),
    "token": (
        "One counted element of the loss: a text token, a sample or a pixel. Ignored and "
        "masked elements do not count."
    ),
    "micro-batch": "One backward call. Several are accumulated before the optimizer steps.",
    "window": "All micro-batches between two steps of one optimizer.",
    "weight": "How much the loss of one token counts in the gradient that the optimizer applies.",
    "relative weight": (
        "The weight of a token divided by its weight if all tokens of the window had equal "
        "weight: 1 is right, 2 counts double."
    ),
    "token-weighted loss": (
        "The sum of all token losses divided by the number of tokens: the loss that one large "
        "batch would report. It differs from the reported loss if micro-batch means are averaged."
    ),
    "gradient norm": "The L2 norm of the gradient that the optimizer received.",
    "noise scale": (
        "The batch size in tokens above which averaging more tokens stops helping: the variance "
        "of the gradient of a token divided by the squared norm of the true gradient, estimated "
        "from the micro-batches of the last 100 steps or so."
    ),
    "sampled steps": (
        "The steps that the hooks measured. After the first 256 steps, the hooks of a run with "
        "steps of milliseconds measure bursts of steps and skip the rest, which bounds their "
        "overhead. GRADLEDGER_OVERHEAD=full measures every step."
    ),
    "collectives": ("Communication calls between ranks during this backward. Zero under no_sync."),
    "verdict": (
        "Balanced: no errors or warnings, and every structural check that applies was measured. "
        "Suspect: at least one warning. Broken: at least one error. Incomplete: no errors or "
        "warnings, but a structural check that applies was not measured."
    ),
    "inhibited": (
        "A symptom of another finding. It stays visible, sends no alert, and should disappear "
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
    "not_applicable": "not applicable",
    "not_measured": "not measured",
}
ANSWERS = {  # of a question of the decision tree
    "ok": "Yes",
    "finding": "No",
    "not_measured": "Not measured",
    "not_applicable": "Not applicable",
}


@dataclass(frozen=True)
class Fact:
    """One piece of evidence with its label, formatted."""

    label: str
    text: str
    term: str | None = None  # the glossary entry that explains it
    is_list: bool = False  # lists are set in smaller type


_LABELS = {
    "balance": "balance B",
    "misallocation": "misallocation d",
    "misallocation_recent": "recent mean d",
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
    "since": "since step",
    "in_a_row": "skipped in a row",
    "of": "of the last steps",
    "seconds": "time without a step",
    "usual_seconds": "median time between steps",
    "abandoned_after": "abandoned after micro-batches",
    "advances": "schedule steps",
    "on_skipped": "of them, on skipped steps",
    "backward_ms": "backward by micro-batch, ms",
    "wasted": "avoidable synchronisations",
    "wasted_bytes": "avoidable traffic",
    "spikes_at": "steps of the spikes",
    "calibrating": "skipped at the start",
    "with_nan_loss": "skipped with a NaN loss",
    "skipped_with_nan_loss": "skipped with a NaN loss",
    "first": "first layer",
    "last": "last layer",
    "gradients": "gradient RMS by layer",
    "updates": "update / parameter by layer",
    "norms": "gradient norm by rank",
    "learning_rates": "learning rate by rank",
    "parameters_apart": "parameters that differ",
    "parameters_differ": "parameters that differ",
    "parameters_total": "parameters in total",
    "loss_start": "loss at the start",
    "loss_best": "lowest loss",
    "loss_early": "early loss",
    "norm_early": "early gradient norm",
    "norm_before": "gradient norm before",
    "norm_seen": "norm with the scale",
    "norm_true": "norm without the scale",
    "lr_before": "learning rate before",
    "lr_highest": "highest learning rate",
    "lr_lowest": "lowest learning rate",
    "steps_at_zero": "steps with learning rate 0",
    "unmoved": "share that did not move",
    "zero_share": "share of zero gradients",
    "padding": "padding counted",
    "silent_ranks": "no heartbeat from",
}
_TERMS = {
    "balance": "balance",
    "misallocation": "misallocation",
    "misallocation_recent": "misallocation",
    "relative_weights": "relative weight",
    "loss_token": "token-weighted loss",
    "micro_batches": "micro-batch",
    "tokens": "token",
    "norm": "gradient norm",
}
# In a key: its value is a fraction of 1.
_FRACTIONS = ("misallocation", "share", "fraction", "unmoved")
MOST_LISTED = 64  # values that a rule gives as evidence, of any number
_SHOWN = ("misallocation", "balance")  # in the headline, where they are wrong
_CORRECT_VALUES = {"misallocation": 0.0, "misallocation_recent": 0.0, "balance": 1.0}


def facts(evidence: dict[str, Any], step: int | None = None) -> list[Fact]:
    """Evidence as labelled texts, in the order of the rule.

    What changed at the onset is left out: the summary states it. Beside a mean over the last
    steps, the figure of ``step``, the last one, is labelled with it.
    """
    shown = ((k, v) for k, v in evidence.items() if k != "changed")
    facts = [_fact(key, value) for key, value in shown if value not in (None, [], {})]
    if step is None or "misallocation_recent" not in evidence:
        return facts
    of_step = f"{_LABELS['misallocation']} of step {step:,}"
    return [replace(f, label=of_step) if f.label == _LABELS["misallocation"] else f for f in facts]


def headline(evidence: dict[str, Any]) -> list[Fact]:
    """Misallocation and balance, if they are measured and wrong: of misallocation, the mean over
    the last steps, where the rule has one."""
    recent = "misallocation_recent"
    has_mean = evidence.get(recent) is not None  # of several losses, there is none
    keys = [recent if key == "misallocation" and has_mean else key for key in _SHOWN]
    values = {key: evidence.get(key) for key in keys}
    return facts({key: value for key, value in values.items() if value != _CORRECT_VALUES[key]})


def _fact(key: str, value: Any) -> Fact:
    label = _LABELS.get(key, key.replace("_", " "))
    return Fact(label, _text(key, value), _TERMS.get(key), isinstance(value, (list, tuple, dict)))


def _text(key: str, value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (int, float)) and math.isfinite(value):
        if key.endswith("seconds"):
            return f"{formatting.figure(value, 3)} s"
        if key.endswith("_bytes"):
            return formatting.byte_size(value)
    if isinstance(value, int):
        return formatting.count(value)
    if isinstance(value, float):
        is_fraction = any(word in key for word in _FRACTIONS)
        return formatting.percent(value) if is_fraction else formatting.figure(value)
    if key == "silent_ranks":
        return _shortened([f"rank {rank}" for rank in value])
    if isinstance(value, (list, tuple)):
        return _shortened([_text(key, item) for item in value])
    if isinstance(value, dict):
        return ", ".join(f"{name}: {_text(str(name), item)}" for name, item in value.items())
    return str(value)


def _shortened(texts: list[str], longest: int = 12) -> str:
    """The first ones, and how many there are; rules list no more than ``MOST_LISTED``."""
    shown = ", ".join(texts[:longest])
    if len(texts) <= longest:
        return shown
    return f"{shown}, …" + (f" ({len(texts)} in total)" if len(texts) < MOST_LISTED else "")
