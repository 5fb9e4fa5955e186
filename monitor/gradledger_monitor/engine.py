"""Feeds facts to the rules, and folds their outcomes into findings, coverage and a verdict.

Pure: the same facts in the same order give the same judgement, live, replayed or after a restart.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from gradledger_monitor.facts import RunInfo, StepFacts
from gradledger_monitor.findings import SEVERITIES, Finding, Judgement, Outcome, Status
from gradledger_monitor.rules.balances import Closed
from gradledger_monitor.rules.base import HISTORY, Rule, Window, not_measured
from gradledger_monitor.rules.catalogue import RULES
from gradledger_monitor.tree import answer, verdict

# A finding that no window of the last so many shows is resolved.
RESOLVED_AFTER = 20

_STRONGEST: tuple[Status, ...] = ("finding", "ok", "not_measured", "not_applicable")


@dataclass
class _Line:
    """One rule on one optimizer: the rule's state, and the fold of its outcomes."""

    rule: Rule
    outcome: Outcome | None = None  # the strongest so far
    finding: Finding | None = None
    quiet: int = 0  # windows since the finding was last shown


@dataclass
class _Track:
    """One optimizer's rules and history."""

    lines: dict[str, _Line]
    past: deque[Closed] = field(default_factory=lambda: deque(maxlen=HISTORY))


class Engine:
    """Judges one run, step by step."""

    def __init__(self, run: RunInfo, rules: Iterable[Callable[[], Rule]] = RULES) -> None:
        self.run = run
        self._rules = tuple(rules)
        self._structural = {rule().id() for rule in self._rules if rule().kind == "S"}
        self._tracks: dict[int, _Track] = {}

    def see(self, facts: StepFacts) -> None:
        """The next step of one optimizer, in order."""
        track = self._tracks.get(facts.optimizer)
        if track is None:
            lines = {rule.id(): _Line(rule) for rule in (make() for make in self._rules)}
            track = self._tracks[facts.optimizer] = _Track(lines)
        window = Window(facts, track.past)
        for line in track.lines.values():
            _fold(line, facts, _judge(line.rule, window))
        track.past.append(window.closed())

    def judgement(self) -> Judgement:
        """Everything that the rules say so far."""
        findings = [line.finding for line in self._lines() if line.finding is not None]
        _inhibit(findings, {line.rule.id(): line.rule.hides for line in self._lines()})
        findings.sort(key=_importance)
        coverage = self._coverage()
        tree = answer(coverage, self._structural)
        loud = [f.severity for f in findings if not f.inhibited_by and f.lifecycle != "resolved"]
        said = {rule: _said(outcome) for rule, outcome in coverage.items()}
        return Judgement(verdict(tree, list(loud)), findings, tree, said)

    def _lines(self) -> list[_Line]:
        tracks = sorted(self._tracks.items())
        return [line for _, track in tracks for line in track.lines.values()]

    def _coverage(self) -> dict[str, Outcome]:
        """The strongest outcome of each rule over all optimizers."""
        coverage: dict[str, Outcome] = {}
        for line in self._lines():
            if line.outcome is not None:
                best = coverage.get(line.rule.id())
                coverage[line.rule.id()] = _stronger(best, line.outcome)
        return coverage


def _judge(rule: Rule, window: Window) -> Outcome:
    try:
        return rule.judge(window)
    except Exception as error:  # a rule's bug must not silence the others, nor be silent itself
        return not_measured(f"the rule failed: {type(error).__name__}: {error}")


def _fold(line: _Line, facts: StepFacts, outcome: Outcome) -> None:
    line.outcome = _stronger(line.outcome, outcome)
    if outcome.status == "finding":
        line.quiet = 0
        _show(line, facts, outcome)
    elif line.finding is not None and outcome.status == "ok":
        line.quiet += 1
        if line.quiet >= RESOLVED_AFTER:
            line.finding.lifecycle = "resolved"


def _show(line: _Line, facts: StepFacts, outcome: Outcome) -> None:
    known = line.finding
    if known is None:
        line.finding = Finding(
            line.rule.id(),
            facts.optimizer,
            outcome.severity,
            facts.step,
            facts.step,
            1,
            outcome.title,
            outcome.summary,
            outcome.fix,
            outcome.evidence,
        )
        return
    known.lifecycle = "regressed" if known.lifecycle == "resolved" else "ongoing"
    known.severity = outcome.severity
    known.last_step, known.steps = facts.step, known.steps + 1
    known.title, known.summary, known.fix = outcome.title, outcome.summary, outcome.fix
    known.evidence = outcome.evidence


def _stronger(known: Outcome | None, new: Outcome) -> Outcome:
    if known is None:
        return new
    return new if _STRONGEST.index(new.status) < _STRONGEST.index(known.status) else known


def _inhibit(findings: list[Finding], hides: dict[str, tuple[str, ...]]) -> None:
    """A root cause mutes its symptoms: they stay visible, and raise no alarm."""
    for finding in findings:
        causes = [f.rule for f in findings if _hides(hides[f.rule], finding.rule, f.rule)]
        finding.inhibited_by = min(causes) if causes else None


def _hides(patterns: tuple[str, ...], symptom: str, cause: str) -> bool:
    return symptom != cause and any(fnmatchcase(symptom, pattern) for pattern in patterns)


def _importance(finding: Finding) -> tuple[bool, int, int, str]:
    severity = -SEVERITIES.index(finding.severity)
    return finding.inhibited_by is not None, severity, finding.first_step, finding.rule


def _said(outcome: Outcome) -> str:
    return f"{outcome.status}: {outcome.reason}" if outcome.reason else outcome.status
