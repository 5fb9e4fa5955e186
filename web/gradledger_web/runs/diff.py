"""Several runs side by side: configuration, measurements and results, and the changes as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from gradledger_web import formatting
from gradledger_web.glossary import VERDICTS

if TYPE_CHECKING:
    from gradledger_monitor.model.findings import EvaluationResult
    from gradledger_monitor.store.runs.queries import RunRow

Values = Mapping[str, float | None]

_BATCH_AND_RATE = (
    ("samples", "effective batch, samples"),
    ("tokens", "effective batch, tokens"),
    ("lr", "learning rate"),
)
_LOOP = (
    ("micro_batches", "micro-batches per step"),
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
_RESULT_TOLERANCE = 0.001  # of a misallocation or a balance; smaller changes are rounding
_SMALL_CHANGE = 0.1  # of a figure: smaller ones are percentages, larger ones factors
SHORT_COMMIT = 10  # digits, as git abbreviates one of a large repository
_TOLERANCE = 0.02  # medians of two equal trainings differ by less


@dataclass(frozen=True)
class ComparedRun:
    """One run: the medians of its figures over all steps, and their means over the last ones."""

    run: RunRow
    evaluation: EvaluationResult
    medians: Values
    last_means: Values

    @property
    def root_rules(self) -> list[str]:
        """The rules with a finding that no other finding explains."""
        return [f.rule for f in self.evaluation.findings if f.inhibited_by is None]


@dataclass(frozen=True)
class DiffRow:
    """One property of the runs, and whether it differs between them."""

    name: str
    texts: tuple[str, ...]
    differs: bool
    change: str = ""  # from the first run to the last
    rule: bool = False  # the name is the id of a rule


def measured_rows(runs: Sequence[ComparedRun]) -> list[DiffRow]:
    """What was measured of the training loops: effective batch and learning rate first."""
    rows = [
        *_figure_rows(_BATCH_AND_RATE, [compared.medians for compared in runs]),
        _row("ranks", [str(compared.run.world_size) for compared in runs]),
        *_figure_rows(_LOOP, [compared.medians for compared in runs]),
    ]
    return [row for row in rows if _is_measured(row)]


def result_rows(runs: Sequence[ComparedRun]) -> list[DiffRow]:
    """Verdicts, steps, and the figures at the end of the runs."""
    rows = _figure_rows(_RESULTS, [compared.last_means for compared in runs])
    return [
        _row("verdict", [VERDICTS[compared.evaluation.verdict] for compared in runs]),
        _row("steps", [formatting.count(compared.run.steps) for compared in runs]),
        *(row for row in rows if _is_measured(row)),
    ]


def finding_rows(runs: Sequence[ComparedRun]) -> list[DiffRow]:
    """The rules with findings, and the runs that have them."""
    rules = sorted({rule for compared in runs for rule in compared.root_rules})
    return [
        _finding_row(rule, ["finding" if rule in c.root_rules else "none" for c in runs])
        for rule in rules
    ]


def _finding_row(rule: str, texts: Sequence[str]) -> DiffRow:
    change = {("none", "finding"): "new", ("finding", "none"): "gone"}
    return replace(_row(rule, texts), change=change.get((texts[0], texts[-1]), ""), rule=True)


def config_rows(runs: Sequence[ComparedRun]) -> list[DiffRow]:
    """The configurations that the scripts reported, differences first."""
    return _mapping_rows([compared.run.config for compared in runs])


def environment_rows(runs: Sequence[ComparedRun]) -> list[DiffRow]:
    """The environments of the runs, differences first."""
    return _mapping_rows([compared.run.environment for compared in runs])


def _mapping_rows(mappings: Sequence[Mapping[str, Any]]) -> list[DiffRow]:
    names = list(dict.fromkeys(name for mapping in mappings for name in mapping))
    rows = [_row(name, [_item_text(mapping, name) for mapping in mappings]) for name in names]
    return sorted(rows, key=lambda row: not row.differs)


def _item_text(mapping: Mapping[str, Any], name: str) -> str:
    text = formatting.joined(mapping[name]) if name in mapping else formatting.NOT_MEASURED
    return text[:SHORT_COMMIT] if name == "commit" else text


def _row(name: str, texts: Sequence[str]) -> DiffRow:
    return DiffRow(name, tuple(texts), len(set(texts)) > 1)


def _figure_rows(figures: Sequence[tuple[str, str]], medians: Sequence[Values]) -> list[DiffRow]:
    return [_figure_row(name, [values.get(key) for values in medians]) for key, name in figures]


def _figure_row(name: str, values: Sequence[float | None]) -> DiffRow:
    numbers = [value for value in values if value is not None]
    differs = bool(numbers) and max(numbers) - min(numbers) > _TOLERANCE * max(map(abs, numbers))
    text_of = formatting.percent if "misallocation" in name else formatting.figure
    texts = tuple(map(text_of, values))
    partly_measured = 0 < len(numbers) < len(values)
    is_changed = texts[0] != texts[-1]
    change = _change(values[0], values[-1], "misallocation" in name) if is_changed else ""
    return DiffRow(name, texts, differs or partly_measured, change)


def _change(old: float | None, new: float | None, fraction: bool) -> str:
    """A difference in percentage points, a factor, or the percentage of a small change."""
    if old is None or new is None:
        return ""
    if fraction:
        return f"{formatting.signed((new - old) * 100)} points"
    if old and abs(new / old - 1) < _SMALL_CHANGE:
        return f"{formatting.signed((new / old - 1) * 100)}%"
    return formatting.times(new / old) if old and new / old > 0 else formatting.signed(new - old)


def _is_measured(row: DiffRow) -> bool:
    return any(text != formatting.NOT_MEASURED for text in row.texts)


# ---------------------------------------------------------------- changes as text


def changes(runs: Sequence[ComparedRun]) -> dict[str, list[str]]:
    """The changes from the first run to each other one that differs, by its name: verdict,
    findings, batch, rate, config."""
    by_run = {_name(after.run): _changes(runs[0], after) for after in runs[1:]}
    return {name: [f"{text}." for text in texts] for name, texts in by_run.items() if texts}


def _name(run: RunRow) -> str:
    return run.name if run.name == run.id else f"{run.name} ({run.id})"


def _changes(before: ComparedRun, after: ComparedRun) -> list[str]:
    medians = (_median_change(key, name, before, after) for key, name in _BATCH_AND_RATE)
    measured = [
        *_verdict_change(before, after),
        *_result_changes(before, after),
        *_finding_changes(before, after),
        *(text for text in medians if text),
    ]
    old, new = before.run.environment, after.run.environment
    other = [name for name in {**old, **new} if old.get(name) != new.get(name)]
    environment = [f"Different environment: {', '.join(other)}"] if other else []
    # names in the configuration belong to the script: they get no capital letter
    config = _config_changes(before.run.config, after.run.config)
    return [*map(formatting.sentence, measured), *config, *environment]


def _verdict_change(before: ComparedRun, after: ComparedRun) -> list[str]:
    if before.evaluation.verdict == after.evaluation.verdict:
        return []
    old, new = VERDICTS[before.evaluation.verdict], VERDICTS[after.evaluation.verdict]
    return [f"the verdict changed from {old.lower()} to {new.lower()}"]


def _result_changes(before: ComparedRun, after: ComparedRun) -> list[str]:
    """``improved: d 10.1% → 0%``: how far misallocation and balance are from what is right."""
    texts = []
    for key, symbol, right in (("misallocation", "d", 0.0), ("balance", "B", 1.0)):
        old, new = before.last_means.get(key), after.last_means.get(key)
        if old is None or new is None or abs(new - old) <= _RESULT_TOLERANCE:
            continue
        word = "improved" if abs(new - right) < abs(old - right) else "worse"
        text_of = formatting.percent if key == "misallocation" else formatting.figure
        texts.append(f"{word}: {symbol} {text_of(old)} \N{RIGHTWARDS ARROW} {text_of(new)}")
    return texts


def _finding_changes(before: ComparedRun, after: ComparedRun) -> list[str]:
    titles = {
        finding.rule: finding.title.rstrip(".")
        for compared in (before, after)
        for finding in compared.evaluation.findings
    }
    new = [rule for rule in after.root_rules if rule not in before.root_rules]
    gone = [rule for rule in before.root_rules if rule not in after.root_rules]
    return [f"new: {titles[rule]}" for rule in new] + [f"gone: {titles[rule]}" for rule in gone]


def _median_change(key: str, name: str, before: ComparedRun, after: ComparedRun) -> str | None:
    old, new = before.medians.get(key), after.medians.get(key)
    if not old or not new or abs(new / old - 1) <= _TOLERANCE:
        return None
    factor = formatting.times(new / old)
    return f"{name}: {formatting.figure(old)} to {formatting.figure(new)} ({factor})"


def _config_changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    names = [name for name in {**before, **after} if before.get(name) != after.get(name)]
    return [f"{name}: {_set_value(before, name)} to {_set_value(after, name)}" for name in names]


def _set_value(config: Mapping[str, Any], name: str) -> str:
    return formatting.joined(config.get(name, "not set"))
