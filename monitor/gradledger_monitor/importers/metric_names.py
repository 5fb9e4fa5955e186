"""Which of another tool's names means what: guessed from what people call them, or told (pure)."""

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
    """By meaning, the name that this log uses; and the names of evaluation metrics."""

    known: Mapping[str, str]
    evaluations: frozenset[str]


def match_names(metrics: Iterable[str], told: Mapping[str, str]) -> MetricNames:
    """The names of a log, as told and otherwise guessed. Raises ``UnreadableLog``."""
    there = list(metrics)
    for meaning, name in told.items():
        if name not in there:
            has = ", ".join(there[:20]) or "nothing"
            raise UnreadableLog(f"--map {meaning}={name}: it logs no {name!r}; it has {has}")
    guessed = {meaning: _guess(meaning, there) for meaning in MEANINGS}
    known = {m: name for m, name in guessed.items() if name is not None} | dict(told)
    taken = set(known.values())
    evaluated = (
        n for n in there if n not in taken and _EVALUATED.search(n) and not _SPEED.search(n)
    )
    return MetricNames(known, frozenset(evaluated))


def _guess(meaning: str, metrics: list[str]) -> str | None:
    """The plainest name that means this: ``train/loss`` rather than ``train/loss_step``."""
    fitting = [name for name in metrics if _PATTERNS[meaning].fullmatch(name.lower())]
    if meaning == "step":  # a tool's own counter counts its calls, not the optimizer's steps
        return min(fitting, key=lambda name: ("global" not in name.lower(), name), default=None)
    return min(fitting, key=lambda name: (len(name), name), default=None)
