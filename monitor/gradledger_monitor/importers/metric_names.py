"""The meaning of a log's metric names: given by the user, or guessed from usual names (pure)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gradledger_monitor.importers.metric_log import UnreadableLog

MEANINGS = ("step", "time", "loss", "norm", "lr", "scale")

_TRAIN = r"(train(ing)?[/_.-])?"
_PATTERNS: dict[str, re.Pattern[str]] = {
    "step": re.compile(rf"{_TRAIN}((trainer/)?global[_/]?step|optimi[sz]er_steps?|step|_step)"),
    "time": re.compile(r"(wall_?time|_?timestamp|time)"),
    "loss": re.compile(rf"{_TRAIN}(total_|train_)?loss([/_](step|train))?"),
    "norm": re.compile(rf"{_TRAIN}(global_)?(grad(ient)?|total)_?(2\.0_)?norm([/_]?total)?"),
    "lr": re.compile(rf"{_TRAIN}(lr|learning_?rate)([-/_].*)?"),
    "scale": re.compile(rf"{_TRAIN}(loss|grad|amp|scaler)[/_]?scale"),
}
_EVALUATED = re.compile(
    r"(^|[/_. -])(e?val(uation|id(ation)?)?|test|dev)($|[/_. -])|perplexity", re.I
)
_SPEED = re.compile(r"(runtime|per_second|compilation_time|samples|epoch|(^|_)steps?)$", re.I)


@dataclass(frozen=True)
class MetricNames:
    """The metric name of each meaning in a log, and the names of its evaluation metrics."""

    by_meaning: Mapping[str, str]
    evaluations: frozenset[str]


def match_names(metrics: Iterable[str], mapping: Mapping[str, str]) -> MetricNames:
    """The names by ``mapping`` (--map), all others guessed. Raises ``UnreadableLog``."""
    logged = list(metrics)
    for meaning, name in mapping.items():
        if name not in logged:
            names = ", ".join(logged[:20]) or "nothing"
            raise UnreadableLog(f"--map {meaning}={name}: the log has no {name!r}; it has {names}")
    guesses = {meaning: _guess(meaning, logged) for meaning in MEANINGS}
    by_meaning = {m: name for m, name in guesses.items() if name is not None} | dict(mapping)
    used = set(by_meaning.values())
    evaluated = (
        n for n in logged if n not in used and _EVALUATED.search(n) and not _SPEED.search(n)
    )
    return MetricNames(by_meaning, frozenset(evaluated))


def _guess(meaning: str, metrics: list[str]) -> str | None:
    """The shortest name with this meaning: ``train/loss`` rather than ``train/loss_step``."""
    matches = [name for name in metrics if _PATTERNS[meaning].fullmatch(name.lower())]
    if meaning == "step":  # a tool's own counter counts log calls, not optimizer steps
        return min(matches, key=lambda name: ("global" not in name.lower(), name), default=None)
    return min(matches, key=lambda name: (len(name), name), default=None)
