"""Feeds facts to the rules, and folds their outcomes into findings, coverage and a verdict.

Pure: the same facts in the same order give the same judgement, live, replayed or after a restart.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from itertools import chain
from typing import TypeVar

from gradledger_monitor.facts import RunInfo, StepFacts
from gradledger_monitor.findings import SEVERITIES, Finding, Judgement, Lifecycle, Outcome, Status
from gradledger_monitor.rules import idioms
from gradledger_monitor.rules.balances import Closed
from gradledger_monitor.rules.base import (
    HISTORY,
    Course,
    CourseRule,
    Rule,
    Signature,
    Silence,
    Window,
    not_applicable,
    not_measured,
)
from gradledger_monitor.rules.catalogue import COURSE_RULES, RULES
from gradledger_monitor.rules.choices import OFF, Choices
from gradledger_monitor.tree import answer, verdict

Kind = TypeVar("Kind", bound=Signature)

# A finding that no window of the last so many shows is resolved.
RESOLVED_AFTER = 20

_STRENGTH: dict[Status, int] = {"finding": 4, "ok": 2, "not_measured": 1, "not_applicable": 0}
_FAILED = 3
_FOUND = Outcome("finding")


@dataclass
class _Line:
    """One rule's outcomes, folded."""

    rule: str
    optimizer: int
    outcome: Outcome | None = None  # the strongest so far
    claim: Outcome | None = None  # of the last step that showed the finding
    first_step: int = 0
    last_step: int = 0
    since_step: int = 0  # where it began, or began again after it was resolved
    steps: int = 0
    lifecycle: Lifecycle = "new"
    quiet: int = 0  # windows since the finding was last shown

    def fold(self, step: int, outcome: Outcome) -> None:
        """Take the next outcome in."""
        if outcome.status == "finding":
            self.outcome = _FOUND
            self.quiet = 0
            self._show(step, outcome)
            return
        self.outcome = _stronger(self.outcome, outcome)
        if self.claim is not None and outcome.status == "ok":
            self.quiet += 1
            if self.quiet >= RESOLVED_AFTER:
                self.lifecycle = "resolved"

    def _show(self, step: int, claim: Outcome) -> None:
        if self.claim is None:
            self.first_step = self.since_step = step
        elif self.lifecycle == "resolved":
            self.lifecycle, self.since_step = "regressed", step
        else:
            self.lifecycle = "ongoing"
        self.claim, self.last_step, self.steps = claim, step, self.steps + 1

    def tell(self) -> Finding | None:
        """The finding as it is now."""
        if self.claim is None:
            return None
        try:
            self.claim = said = self.claim.told()
        except Exception as error:
            self.outcome, self.claim = _failed(error), None
            return None
        return Finding(
            rule=self.rule,
            optimizer=self.optimizer,
            severity=said.severity,
            first_step=self.first_step,
            last_step=self.last_step,
            steps=self.steps,
            title=said.title,
            summary=said.summary,
            fix=said.fix,
            evidence=said.evidence,
            lifecycle=self.lifecycle,
            since_step=self.since_step,
        )


@dataclass
class _Panel:
    """Rules that share the question whether theirs arises, each with its line."""

    rules: list[Rule] = field(default_factory=list)
    lines: list[_Line] = field(default_factory=list)
    # what was said, by one for all or by each, and said once more would not change any line
    settled: Outcome | list[Outcome] | None = None

    def add(self, rule: Rule, line: _Line) -> None:
        """One rule more."""
        self.rules.append(rule)
        self.lines.append(line)

    @property
    def asked(self) -> Iterator[tuple[Rule, _Line]]:
        """Each rule with its line."""
        return zip(self.rules, self.lines, strict=True)

    def see(self, window: Window) -> None:
        """The next window."""
        try:
            calm = self.rules[0].unless(window)
        except Exception as error:
            calm = _failed(error)
        said = calm or _judged(self.rules, window)
        if said == self.settled:
            return
        outcomes = said if isinstance(said, list) else [said] * len(self.rules)
        open_ones = False
        for line, outcome in zip(self.lines, outcomes, strict=True):
            if outcome is not line.outcome or line.claim is not None:  # else nothing is new
                line.fold(window.facts.step, outcome)
                open_ones = open_ones or line.claim is not None
        # a finding is over after so many that are content: then each of them counts
        self.settled = None if open_ones else said


class _Track:
    """One optimizer's rules, what became of them, and its history."""

    def __init__(
        self, rules: list[Rule], optimizer: int, choices: Choices, imported_from: str | None
    ) -> None:
        self.lines = [_Line(rule.id(), optimizer) for rule in rules]
        self.past: deque[Closed] = deque(maxlen=HISTORY)
        panels: dict[object, _Panel] = {}
        for rule, line in zip(rules, self.lines, strict=True):
            if choices.is_off(line.rule):
                line.fold(0, not_applicable(OFF))
            elif imported_from and not rule.reads_logs:
                line.fold(0, not_measured(f"{imported_from} does not log what this rule looks at"))
            else:
                panels.setdefault(rule.unless, _Panel()).add(rule, line)
        self.panels = list(panels.values())
        self._every_step = imported_from is None  # logs of other tools skip steps as they like
        self.step = 0

    def reach(self, step: int) -> None:
        """The next step; where others lie between, rules do not take it for the next one."""
        if self._every_step and step > self.step + 1 and self.step:
            for rule, _ in self.asked:
                rule.after_gap()
        self.step = step

    @property
    def asked(self) -> Iterator[tuple[Rule, _Line]]:
        """The rules that are on, each with its line."""
        return chain.from_iterable(panel.asked for panel in self.panels)

    def manner(self) -> dict[str, dict[str, float]]:
        """The rules that are on, with their thresholds."""
        return {line.rule: _thresholds(rule) for rule, line in self.asked}


def _thresholds(rule: Rule) -> dict[str, float]:
    return {name: getattr(rule, name) for name in rule.parameters()}


def _kept(rule: Rule, line: _Line, known: tuple[Rule, _Line] | None) -> tuple[Rule, _Line]:
    """A rule and its line, with what is known of both: of a rule with other thresholds, only what
    it found. Its memory was made with the old ones."""
    if known is None:
        return rule, line
    return (known[0] if _thresholds(known[0]) == _thresholds(rule) else rule), known[1]


@dataclass(frozen=True)
class Memory:
    """All that an engine knows between two steps: with it, another goes on where this one was."""

    tracks: dict[int, _Track]
    losses: dict[int, float]


class Engine:
    """Judges one run, step by step."""

    def __init__(
        self,
        run: RunInfo,
        rules: Iterable[type[Rule]] = RULES,
        course_rules: Iterable[type[CourseRule]] = COURSE_RULES,
        choices: Choices = Choices(),  # noqa: B008 (frozen)
    ) -> None:
        self.run = run
        self._choices = choices
        self._rules, self._course_rules = tuple(rules), tuple(course_rules)
        both: tuple[type[Signature], ...] = (*self._rules, *self._course_rules)
        self._kinds = {rule.id(): rule.kind for rule in both}
        self._hides = {rule.id(): rule.hides for rule in both}
        self._judged_with = {rule.id(): choices.judged_with(rule) for rule in both}
        self._tracks: dict[int, _Track] = {}
        self._course = Course()

    def see(self, facts: StepFacts) -> None:
        """The next step of one optimizer, in order."""
        track = self._tracks.get(facts.optimizer)
        if track is None:
            track = self._tracks[facts.optimizer] = self._track(facts.optimizer)
        track.reach(facts.step)
        window = Window(facts, track.past)
        for panel in track.panels:
            panel.see(window)
        track.past.append(window.closed())
        if facts.optimizer == 0 and facts.loss_reported is not None:
            self._course.add(facts.step, facts.loss_reported)

    def patience(self, optimizer: int) -> float | None:
        """Seconds without a step of an optimizer after which some rule asks for a ``Silence``."""
        track = self._tracks.get(optimizer)
        said = [rule.patience() for rule, _ in track.asked] if track else []
        return min((seconds for seconds in said if seconds is not None), default=None)

    def hear_nothing(self, optimizer: int, after: int, silence: Silence) -> None:
        """A silence after a step of an optimizer, in its place between the steps."""
        for panel in self._tracks[optimizer].panels:
            panel.settled = None
            for rule, line in panel.asked:
                outcome = rule.judge_silence(silence)
                if outcome is not None:
                    line.fold(after, outcome)

    def memory(self) -> Memory:
        """What it knows; it is not to be changed."""
        for line in self._step_lines():
            line.tell()  # what is still to be told of a step cannot be kept
        return Memory(self._tracks, self._course.losses)

    def recall(self, memory: Memory) -> None:
        """Go on where another engine was. What it judged by other choices stays as it was judged;
        rules that are asked otherwise from now on begin anew."""
        self._tracks = {o: self._followed(track, o) for o, track in memory.tracks.items()}
        self._course.losses = memory.losses

    def _followed(self, before: _Track, optimizer: int) -> _Track:
        """A track by the choices of this engine, which goes on where another was."""
        track = self._track(optimizer)
        if track.manner() == before.manner():
            return before
        known = {rule.id(): (rule, line) for rule, line in before.asked}
        for panel in track.panels:
            kept = [_kept(rule, line, known.get(line.rule)) for rule, line in panel.asked]
            panel.rules, panel.lines = [rule for rule, _ in kept], [line for _, line in kept]
        asked = {line.rule: line for _, line in track.asked}
        track.lines = [asked.get(line.rule, line) for line in track.lines]
        track.past, track.step = before.past, before.step
        return track

    def _track(self, optimizer: int) -> _Track:
        rules = [self._make(rule) for rule in self._rules]
        return _Track(rules, optimizer, self._choices, self.run.imported_from)

    def _make(self, rule: type[Kind]) -> Kind:
        return rule.made(self._choices.thresholds.get(rule.id(), {}))

    def evaluated(self, evaluations: dict[str, dict[int, float]]) -> None:
        """All evaluation metrics so far: metric -> step -> value."""
        self._course.evaluations = evaluations

    def judgement(self) -> Judgement:
        """Everything that the rules say so far."""
        lines = [*self._step_lines(), *self._course_lines()]
        found = [line.tell() for line in lines]
        findings = [replace(f, fix=idioms.fix(self.run, f.rule, f.fix)) for f in found if f]
        _inhibit(findings, self._hides)
        findings.sort(key=_importance)
        coverage = _coverage(lines)
        tree = answer(coverage, {rule for rule, kind in self._kinds.items() if kind == "S"})
        said = {rule: self._said(rule, outcome) for rule, outcome in coverage.items()}
        severities = [f.severity for f in findings if self._counts(f)]
        return Judgement(verdict(tree, severities), findings, tree, said)

    def _said(self, rule: str, outcome: Outcome) -> str:
        asked = outcome.status != "not_applicable"
        reasons = [outcome.reason, self._judged_with[rule] if asked else ""]
        return ": ".join(filter(None, (outcome.status, "; ".join(filter(None, reasons)))))

    def _counts(self, finding: Finding) -> bool:
        """Whether a finding is part of the verdict. A structural mistake was made, and stays so;
        a statistical one that has passed is history."""
        passed = finding.lifecycle == "resolved" and self._kinds[finding.rule] == "T"
        return finding.inhibited_by is None and not passed

    def _step_lines(self) -> list[_Line]:
        return [line for _, track in sorted(self._tracks.items()) for line in track.lines]

    def _course_lines(self) -> list[_Line]:
        lines = []
        for rule in self._course_rules:
            line = _Line(rule.id(), 0)
            if self._choices.is_off(rule.id()):
                line.fold(0, not_applicable(OFF))
            elif self._tracks:
                for step, outcome in self._make(rule).judge_course(self._course):
                    line.fold(step, outcome)
            lines.append(line)
        return lines


def _coverage(lines: Iterable[_Line]) -> dict[str, Outcome]:
    """The strongest outcome of each rule over all optimizers."""
    coverage: dict[str, Outcome] = {}
    for line in lines:
        if line.outcome is not None:
            coverage[line.rule] = _stronger(coverage.get(line.rule), line.outcome)
    return coverage


def _judged(rules: list[Rule], window: Window) -> list[Outcome]:
    """What each rule says."""
    said: list[Outcome] = []
    for rule in rules:
        try:
            said.append(rule.judge(window))
        except Exception as error:  # one rule's bug must not silence the others
            said.append(_failed(error))
    return said


class _Failure(Outcome, frozen=True):
    """A rule that has a bug has measured nothing, whatever it said of other steps."""


def _failed(error: Exception) -> Outcome:
    return _Failure("not_measured", f"the rule failed: {type(error).__name__}: {error}")


def _stronger(known: Outcome | None, new: Outcome) -> Outcome:
    if known is None:
        return new
    return new if _strength(new) > _strength(known) else known


def _strength(outcome: Outcome) -> int:
    return _FAILED if isinstance(outcome, _Failure) else _STRENGTH[outcome.status]


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
