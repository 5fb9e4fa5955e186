"""Several runs side by side: what was set otherwise, what came of it, and what changed in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from gradledger_web import formatting
from gradledger_web.glossary import VERDICTS

if TYPE_CHECKING:
    from gradledger_monitor.model.findings import EvaluationResult
    from gradledger_monitor.store.runs.queries import RunRow

Values = Mapping[str, float | None]

_MEASURED = (
    ("samples", "effective batch, samples"),
    ("tokens", "effective batch, tokens"),
    ("lr", "learning rate"),
    ("micro_batches", "micro-batches in a step"),
    ("clip_limit", "clipping limit"),
    ("scale", "loss scale"),
)
_RESULTS = (
    ("loss_reported", "reported loss"),
    ("loss_token", "token-weighted loss"),
    ("balance", "balance B"),
    ("misallocation", "misallocation d"),
    ("norm", "gradient norm"),
)
_CLOSE = 0.02  # of medians that move by chance


@dataclass(frozen=True)
class ComparedRun:
    """One run: ``middle`` are medians of its figures over its course, ``last`` those of its end."""

    run: RunRow
    evaluation: EvaluationResult
    middle: Values
    last: Values

    @property
    def found(self) -> list[str]:
        """The rules that found something that nothing else explains."""
        return [f.rule for f in self.evaluation.findings if f.inhibited_by is None]


@dataclass(frozen=True)
class DiffRow:
    """One thing that the runs have in common or not."""

    name: str
    texts: tuple[str, ...]
    differs: bool


def measured_rows(runs: Sequence[ComparedRun]) -> list[DiffRow]:
    """What was measured of how they train: effective batch and learning rate first."""
    lines = [_figures(name, [one.middle.get(key) for one in runs]) for key, name in _MEASURED]
    ranks = _line("ranks", [str(one.run.world_size) for one in runs])
    return [line for line in (*lines[:3], ranks, *lines[3:]) if any(_said(line))]


def result_rows(runs: Sequence[ComparedRun]) -> list[DiffRow]:
    """What came of it at the end."""
    lines = [_figures(name, [one.last.get(key) for one in runs]) for key, name in _RESULTS]
    verdicts = _line("verdict", [VERDICTS[one.evaluation.verdict] for one in runs])
    steps = _line("steps", [formatting.count(one.run.steps) for one in runs])
    return [verdicts, steps, *(line for line in lines if any(_said(line)))]


def finding_rows(runs: Sequence[ComparedRun]) -> list[DiffRow]:
    """Which rules found something in which run."""
    rules = sorted({rule for one in runs for rule in one.found})
    return [_line(rule, ["found" if rule in one.found else "–" for one in runs]) for rule in rules]  # noqa: RUF001


def config_rows(runs: Sequence[ComparedRun]) -> list[DiffRow]:
    """What the scripts told of their configuration, differences first."""
    return _tables([one.run.config for one in runs])


def environment_rows(runs: Sequence[ComparedRun]) -> list[DiffRow]:
    """What they ran on, differences first."""
    return _tables([one.run.environment for one in runs])


def _tables(tables: Sequence[Mapping[str, Any]]) -> list[DiffRow]:
    names = list(dict.fromkeys(name for table in tables for name in table))
    lines = [_line(n, [formatting.listed(t[n]) if n in t else "–" for t in tables]) for n in names]  # noqa: RUF001
    return sorted(lines, key=lambda line: not line.differs)


def _line(name: str, texts: Sequence[str]) -> DiffRow:
    return DiffRow(name, tuple(texts), len(set(texts)) > 1)


def _figures(name: str, values: Sequence[float | None]) -> DiffRow:
    known = [value for value in values if value is not None]
    far = bool(known) and max(known) - min(known) > _CLOSE * max(map(abs, known))
    written = formatting.percent if "misallocation" in name else formatting.figure
    return DiffRow(name, tuple(map(written, values)), far or 0 < len(known) < len(values))


def _said(line: DiffRow) -> list[str]:
    return [text for text in line.texts if text != formatting.NOT_MEASURED]


# ---------------------------------------------------------------- in words


def changes(runs: Sequence[ComparedRun]) -> list[str]:
    """What changed from each run to the next, the gravest first."""
    said: list[str] = []
    for before, now in pairwise(runs):
        who = f"{now.run.name} ({now.run.id})" if len(runs) > 2 else "The second run"
        said += [f"{who}: {change}." for change in _changes(before, now)]
    return said


def _changes(before: ComparedRun, now: ComparedRun) -> list[str]:
    said = []
    if before.evaluation.verdict != now.evaluation.verdict:
        was, is_ = VERDICTS[before.evaluation.verdict], VERDICTS[now.evaluation.verdict]
        said.append(f"the verdict went from {was.lower()} to {is_.lower()}")
    titles = {f.rule: f.title for one in (before, now) for f in one.evaluation.findings}
    said += [f"new: {titles[r].rstrip('.')}" for r in now.found if r not in before.found]
    said += [f"gone: {titles[r].rstrip('.')}" for r in before.found if r not in now.found]
    said += [text for key, name in _MEASURED[:3] if (text := _moved(key, name, before, now))]
    return said + _set(before.run.config, now.run.config)


def _moved(key: str, name: str, before: ComparedRun, now: ComparedRun) -> str | None:
    was, now_is = before.middle.get(key), now.middle.get(key)
    if not was or not now_is or abs(now_is / was - 1) <= _CLOSE:
        return None
    times = formatting.times(now_is / was)
    return f"{name}: {formatting.figure(was)} to {formatting.figure(now_is)}, {times}"


def _set(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    names = [n for n in dict.fromkeys((*before, *now)) if before.get(n) != now.get(n)]
    told = [
        (n, *(formatting.listed(each.get(n, "not set")) for each in (before, now))) for n in names
    ]
    return [f"{name}: {was} to {became}" for name, was, became in told]
