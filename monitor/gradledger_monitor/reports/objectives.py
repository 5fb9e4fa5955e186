"""The objectives of a run side by side, over its steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count

from gradledger_monitor.model.findings import Finding, Status
from gradledger_monitor.model.token_ledger import total
from gradledger_monitor.reports.windows import RECENT, recent_windows, spread_windows
from gradledger_monitor.rules.objective_verdicts import ObjectiveVerdict, objective_verdicts
from gradledger_monitor.rules.rule import Window
from gradledger_monitor.store.database import Store
from gradledger_monitor.store.runs import queries
from gradledger_monitor.store.steps.curves import Span


@dataclass(frozen=True)
class ObjectiveSummary:
    """One objective over the steps that have it. Numbers are means over these steps.

    ``count`` is N in ``unit``, and ``share`` the objective's part of the gradient weight. A number
    that is not measured, or does not apply, is None.
    """

    optimizer: int
    name: str
    unit: str | None
    first_step: int
    last_step: int
    steps: int
    count: float | None
    balance: float | None
    misallocation: float | None
    misallocation_peak: float | None
    coefficient: float | None
    share: float | None
    status: Status
    text: str
    rule: str | None = None  # the finding about it, if there is one


def recent_objectives(
    store: Store,
    run: str,
    findings: Sequence[Finding] = (),
    optimizer: int | None = None,
    most: int = RECENT,
) -> list[ObjectiveSummary]:
    """The objectives of the last steps, of all optimizers or of one; the heaviest first."""
    last_steps = queries.last_evaluated_steps(store, run)
    summaries: list[ObjectiveSummary] = []
    for each, last in sorted(last_steps.items()):
        if optimizer in (None, each):
            windows = recent_windows(store, run, each, last, most)
            summaries += summarize(each, windows, findings)
    return summaries


def summarize(
    optimizer: int, windows: Iterable[Window], findings: Sequence[Finding] = ()
) -> list[ObjectiveSummary]:
    """The objectives of some windows of one optimizer, in the order of the last one.

    A loop may step on one loss after another, in windows of their own.
    """
    by_form: dict[tuple[str, str], list[tuple[int, ObjectiveVerdict]]] = {}
    order: list[tuple[str, str]] = []
    for window in windows:
        verdicts = objective_verdicts(window)
        for verdict in verdicts:
            of_form = by_form.setdefault((verdict.key, verdict.form), [])
            of_form.append((window.facts.step, verdict))
        order = [(verdict.key, verdict.form) for verdict in verdicts] or order
    forms = [*order, *(form for form in by_form if form not in order)]
    groups = [group for form in forms for group in _by_head(by_form[form])]
    of_optimizer = [finding for finding in findings if finding.optimizer == optimizer]
    summaries = [_with_rule(_summary(optimizer, group), of_optimizer) for group in groups]
    return list(_with_names(_with_unnamed(summaries, of_optimizer)))


def _by_head(
    verdicts: list[tuple[int, ObjectiveVerdict]],
) -> list[list[tuple[int, ObjectiveVerdict]]]:
    """Losses of different layers, if each of them comes back.

    Where layers are created anew all the time, their numbers mean nothing.
    """
    heads: dict[int | None, list[tuple[int, ObjectiveVerdict]]] = {}
    for step, verdict in verdicts:
        heads.setdefault(verdict.head, []).append((step, verdict))
    groups = list(heads.values())
    return groups if None not in heads and min(map(len, groups)) > 1 else [verdicts]


def _with_names(summaries: Sequence[ObjectiveSummary]) -> Iterator[ObjectiveSummary]:
    """With names that differ.

    Losses of one kind: of different windows, by a step that has them; of one window, by number.
    """
    names = Counter(summary.name for summary in summaries)
    of_step = Counter((summary.name, summary.last_step) for summary in summaries)
    numbers = {key: count(1) for key in of_step}
    for summary in summaries:
        name, key = summary.name, (summary.name, summary.last_step)
        if of_step[key] > 1:
            name += f" {next(numbers[key])}"
        if names[summary.name] > of_step[key]:
            name += f" (as in step {summary.last_step:,})"
        yield replace(summary, name=name)


def _summary(optimizer: int, verdicts: list[tuple[int, ObjectiveVerdict]]) -> ObjectiveSummary:
    steps = [step for step, _ in verdicts]
    last = verdicts[-1][1]
    shown = next((v for _, v in reversed(verdicts) if v.status == "finding"), last)
    windows = [v for _, v in verdicts if v.unit == last.unit]  # numbers of one unit
    coefficients = {verdict.coefficient for verdict in windows}
    misallocations = [v.misallocation for v in windows if v.misallocation is not None]
    return ObjectiveSummary(
        optimizer=optimizer,
        name=last.name,
        unit=last.unit,
        first_step=steps[0],
        last_step=steps[-1],
        steps=len(steps),
        count=_mean([v.count for v in windows]),
        balance=_mean([v.balance for v in windows]),
        misallocation=_mean([v.misallocation for v in windows]),
        misallocation_peak=max(misallocations, default=None),
        coefficient=last.coefficient if len(coefficients) == 1 else None,
        share=_mean([v.share for v in windows]),
        status=shown.status,
        text=shown.text,
    )


def _mean(values: Iterable[float | None]) -> float | None:
    measured = [value for value in values if value is not None]
    return total(measured) / len(measured) if measured else None


def _with_rule(summary: ObjectiveSummary, findings: Sequence[Finding]) -> ObjectiveSummary:
    """With the rule that found something about this objective, by the name in its evidence."""
    own = (f.rule for f in findings if f.evidence.get("objective") == summary.name)
    return replace(summary, rule=next(own, None))


def _with_unnamed(
    summaries: list[ObjectiveSummary], findings: Sequence[Finding]
) -> list[ObjectiveSummary]:
    """With the finding that names no objective, as of a single loss: of the only one it fits."""
    unnamed = (
        finding.rule
        for finding in findings
        if finding.rule.startswith("reduction.")
        and finding.rule != "reduction.balance_off"  # the verdict is then that weights are equal
        and finding.inhibited_by is None
        and "objective" not in finding.evidence
    )
    rule, wrong = next(unnamed, None), [s for s in summaries if s.status == "finding"]
    if rule is None or len(wrong) != 1 or wrong[0].rule is not None:
        return summaries
    return [replace(s, rule=rule) if s is wrong[0] else s for s in summaries]


# ---------------------------------------------------------------- over the course of a run


@dataclass(frozen=True)
class ObjectiveCurve:
    """One objective by step: its balance and misallocation, None where not measured."""

    name: str
    step: list[int]
    balance: list[float | None]
    misallocation: list[float | None]


def objective_curves(store: Store, run: str, span: Span, most: int) -> list[ObjectiveCurve]:
    """The curves of all objectives over steps spread evenly over a span, the heaviest first."""
    by_key: dict[str, ObjectiveCurve] = {}
    for window in spread_windows(store, run, span, most):
        for verdict in objective_verdicts(window):
            curve = by_key.setdefault(verdict.key, ObjectiveCurve(verdict.name, [], [], []))
            curve.step.append(window.facts.step)
            curve.balance.append(verdict.balance)
            curve.misallocation.append(verdict.misallocation)
    return list(by_key.values())
