"""Feeds facts to the rules, and folds their outcomes into findings, coverage and a verdict.

Pure: the same facts in the same order give the same judgement, live, replayed or after a restart.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import TypeVar

from gradledger_monitor.evaluation.decision_tree import answer, verdict
from gradledger_monitor.evaluation.finding_state import Line, failed, stronger
from gradledger_monitor.evaluation.optimizer_evaluator import Track, carry
from gradledger_monitor.evaluation.snapshot_codec import EngineState
from gradledger_monitor.model.findings import SEVERITIES, EvaluationResult, Finding, Outcome
from gradledger_monitor.model.inactivity import Inactivity
from gradledger_monitor.model.run_history import RunHistory
from gradledger_monitor.model.step_facts import RunInfo, StepFacts
from gradledger_monitor.rules import framework_fixes
from gradledger_monitor.rules.catalogue import HISTORY_RULES, RULES
from gradledger_monitor.rules.definition import RuleDefinition
from gradledger_monitor.rules.overrides import OFF, RuleOverrides
from gradledger_monitor.rules.rule import HistoryRule, Rule, Window, not_applicable

Kind = TypeVar("Kind", bound=RuleDefinition)


class Engine:
    """Judges one run, step by step."""

    def __init__(
        self,
        run: RunInfo,
        rules: Iterable[type[Rule]] = RULES,
        course_rules: Iterable[type[HistoryRule]] = HISTORY_RULES,
        choices: RuleOverrides = RuleOverrides(),  # noqa: B008 (frozen)
    ) -> None:
        self.run = run
        self._choices = choices
        self._rules, self._course_rules = tuple(rules), tuple(course_rules)
        both: tuple[type[RuleDefinition], ...] = (*self._rules, *self._course_rules)
        self._kinds = {rule.id(): rule.kind for rule in both}
        self._inhibits = {rule.id(): rule.inhibits for rule in both}
        self._judged_with = {rule.id(): choices.changed_thresholds(rule) for rule in both}
        self._tracks: dict[int, Track] = {}
        self._course = RunHistory()
        # what an earlier evaluation found, of rules that no track goes on with
        self._carried: dict[tuple[str, int], Line] = {}
        self._carried_to = 0

    def see(self, facts: StepFacts) -> None:
        """The next step of one optimizer, in order. Raises what its arithmetic raises, before any
        rule has seen the step; a rule that raises silences no other one."""
        if facts.unobserved is not None:
            reason = f"step {facts.step} could not be observed: {facts.unobserved}"
            self.miss(facts.optimizer, facts.step, reason)
            return
        track = self._track_of(facts.optimizer)
        track.see(Window(facts, track.past))
        if facts.optimizer == 0 and facts.loss_reported is not None:
            self._course.add(facts.step, facts.loss_reported)

    def miss(self, optimizer: int, step: int, reason: str) -> None:
        """The next step of one optimizer could not be observed or evaluated."""
        self._track_of(optimizer).miss(step, reason)

    def _track_of(self, optimizer: int) -> Track:
        track = self._tracks.get(optimizer)
        if track is None:
            track = self._tracks[optimizer] = self._track(optimizer)
        return track

    def inactivity_timeout(self, optimizer: int) -> float | None:
        """Seconds without a step of an optimizer after which a rule judges ``Inactivity``."""
        track = self._tracks.get(optimizer)
        return track.inactivity_timeout() if track else None

    def hear_nothing(self, optimizer: int, after: int, silence: Inactivity) -> None:
        """A silence after a step of an optimizer, in its place between the steps."""
        for panel in self._track_of(optimizer).panels:
            panel.evaluate_inactivity(after, silence)

    # ------------------------------------------------------------ snapshots

    def state(self) -> EngineState:
        """Everything it knows, as data."""
        return EngineState(
            optimizers={o: track.state() for o, track in self._tracks.items()},
            losses=self._course.losses,
            carried=[line.state() for line in self._carried.values()],
            carried_to=self._carried_to,
        )

    def restore(self, state: EngineState) -> None:
        """Go on from what ``state`` gave. What was judged by other choices stays as it was judged;
        rules that are asked otherwise now begin anew. Raises ``msgspec.ValidationError``."""
        for optimizer, saved in state.optimizers.items():
            self._tracks[optimizer] = track = self._track(optimizer)
            track.restore(saved)
        self._course.losses = state.losses
        for line in state.carried:
            self._carry(line.rule, line.optimizer).restore(line)
        self._carried_to = state.carried_to

    def carry(self, evaluation: EvaluationResult, reached: Mapping[int, int]) -> None:
        """Go on after steps whose records are gone, with what an earlier evaluation found there.

        ``reached`` is the last of these steps by optimizer. No finding is dropped, also not of a
        rule that this version does not have.
        """
        found = {(finding.rule, finding.optimizer) for finding in evaluation.findings}
        for optimizer in sorted({*reached, *(optimizer for _, optimizer in found)}):
            self._tracks[optimizer] = track = self._track(optimizer)
            track.carry(reached.get(optimizer, 0), evaluation)
        retired = sorted((rule, o) for rule, o in found if rule not in self._kinds)
        for rule, optimizer in [*((rule.id(), 0) for rule in self._course_rules), *retired]:
            carry(self._carry(rule, optimizer), evaluation)
        self._carried_to = reached.get(0, 0)

    def _carry(self, rule: str, optimizer: int) -> Line:
        line = self._carried[rule, optimizer] = Line(rule, optimizer)
        return line

    def _track(self, optimizer: int) -> Track:
        rules = [self._make(rule) for rule in self._rules]
        return Track(rules, optimizer, self._choices, self.run.imported_from)

    def _make(self, rule: type[Kind]) -> Kind:
        return rule(self._choices.thresholds_of(rule))

    def evaluated(self, evaluations: dict[str, dict[int, float]]) -> None:
        """All evaluation metrics so far: metric -> step -> value."""
        self._course.evaluations = evaluations

    def evaluation(self) -> EvaluationResult:
        """Everything that the rules say so far."""
        lines = [*self._step_lines(), *self._course_lines(), *self._retired_lines()]
        found = [line.tell() for line in lines]
        findings = [
            replace(f, fix=framework_fixes.fix(self.run, f.rule, f.fix)) for f in found if f
        ]
        _inhibit(findings, self._inhibits)
        findings.sort(key=_importance)
        coverage = _coverage(lines)
        tree = answer(coverage, {rule for rule, kind in self._kinds.items() if kind == "S"})
        said = {rule: self._said(rule, outcome) for rule, outcome in coverage.items()}
        severities = [f.severity for f in findings if self._counts(f)]
        return EvaluationResult(verdict(tree, severities), findings, tree, said)

    def _said(self, rule: str, outcome: Outcome) -> str:
        asked = outcome.status != "not_applicable"
        reasons = [outcome.reason, self._judged_with.get(rule, "") if asked else ""]
        return ": ".join(filter(None, (outcome.status, "; ".join(filter(None, reasons)))))

    def _counts(self, finding: Finding) -> bool:
        """Whether a finding is part of the verdict. A structural mistake was made, and stays so;
        a statistical one that has passed is history."""
        passed = finding.lifecycle == "resolved" and self._kinds.get(finding.rule) == "T"
        return finding.inhibited_by is None and not passed

    def _step_lines(self) -> list[Line]:
        return [line for _, track in sorted(self._tracks.items()) for line in track.lines]

    def _course_lines(self) -> list[Line]:
        lines = []
        for rule in self._course_rules:
            line = Line(rule.id(), 0)
            if self._choices.is_off(rule.id()):
                line.fold(0, not_applicable(OFF))
            elif self._tracks:
                self._judge_course(rule, line)
            lines.append(line)
        return lines

    def _judge_course(self, rule: type[HistoryRule], line: Line) -> None:
        carried = self._carried.get((rule.id(), 0))
        if carried is not None:
            line.restore(carried.state())
        try:
            for step, outcome in self._make(rule).evaluate_history(self._course):
                if carried is None or step > self._carried_to:
                    line.fold(step, outcome)
        except Exception as error:
            line.fold(0, failed(error))

    def _retired_lines(self) -> list[Line]:
        """Of rules that this version does not have."""
        return [line for (rule, _), line in self._carried.items() if rule not in self._kinds]


def _coverage(lines: Iterable[Line]) -> dict[str, Outcome]:
    """The strongest outcome of each rule over all optimizers."""
    coverage: dict[str, Outcome] = {}
    for line in lines:
        if line.outcome is not None:
            coverage[line.rule] = stronger(coverage.get(line.rule), line.outcome)
    return coverage


def _inhibit(findings: list[Finding], hides: dict[str, tuple[str, ...]]) -> None:
    """A root cause mutes its symptoms: they stay visible, and raise no alarm."""
    for finding in findings:
        causes = [f.rule for f in findings if _hides(hides.get(f.rule, ()), finding.rule, f.rule)]
        finding.inhibited_by = min(causes) if causes else None


def _hides(patterns: tuple[str, ...], symptom: str, cause: str) -> bool:
    return symptom != cause and any(fnmatchcase(symptom, pattern) for pattern in patterns)


def _importance(finding: Finding) -> tuple[bool, int, int, str]:
    severity = -SEVERITIES.index(finding.severity)
    return finding.inhibited_by is not None, severity, finding.first_step, finding.rule
