"""The outcomes of one rule on one optimizer, folded into one finding (pure)."""

from __future__ import annotations

import re

from gradledger_monitor.evaluation.snapshot_codec import OutcomeState, RuleOutcomesState
from gradledger_monitor.model.findings import (
    SEVERITIES,
    Doubt,
    EvaluationResult,
    Failure,
    Finding,
    Lifecycle,
    Outcome,
    Passed,
    Status,
    Withdrawal,
)
from gradledger_monitor.rules.balance.patterns import ONE_MORE
from gradledger_monitor.rules.overrides import EVALUATED_WITH

RESOLVED_AFTER = 20  # windows without the finding, after which it is resolved

# Coverage shows the strongest outcome of a rule. One that failed in some step did not measure the
# whole run, so a failure is stronger than all outcomes but a finding.
_STRENGTH: dict[Status, int] = {"finding": 4, "ok": 2, "not_measured": 1, "not_applicable": 0}
_STRENGTH_OF_FAILURE = 3
_FOUND = Outcome("finding")


class RuleOutcomes:
    """What one rule reported of one optimizer up to the last step."""

    def __init__(self, rule_id: str, optimizer: int) -> None:
        self.rule_id = rule_id
        self.optimizer = optimizer
        self.strongest: Outcome | None = None
        self.last_finding: Outcome | None = None  # of the last step with the finding
        self.first_step = 0
        self.last_step = 0
        self.since_step = 0  # where the finding began, or began again after it was resolved
        self.steps = 0
        self.lifecycle: Lifecycle = "new"
        self.ok_windows = 0  # since the last step with the finding

    def fold(self, step: int, outcome: Outcome) -> None:
        """Take the next outcome in."""
        if outcome.status == "finding":
            self._fold_finding(step, outcome)
            return
        if isinstance(outcome, Withdrawal):
            self._withdraw()
        first = self.strongest
        self.strongest = outcome if _replaces(first, outcome) else stronger(first, outcome)
        if self.last_finding is not None and outcome.status == "ok":
            self.ok_windows += 1
            if self.ok_windows >= RESOLVED_AFTER:
                self.lifecycle = "resolved"

    def _fold_finding(self, step: int, outcome: Outcome) -> None:
        # a window that was counted before shows nothing new
        steps = [each for each in outcome.steps or (step,) if each > self.last_step]
        first = steps[0] if steps else step
        if self.last_finding is None:
            self.first_step = self.since_step = first
        elif self.lifecycle == "resolved":
            self.lifecycle, self.since_step = "regressed", first
        else:
            self.lifecycle = "ongoing"
        self.strongest, self.last_finding, self.ok_windows = _FOUND, outcome, 0
        self.last_step = steps[-1] if steps else self.last_step
        self.steps += len(steps)

    def _withdraw(self) -> None:
        """Forget the finding, and why earlier steps did not settle whether it is one."""
        unsettled = self.strongest is not None and self.strongest.status == "not_measured"
        if self.last_finding is None and (not unsettled or isinstance(self.strongest, Failure)):
            return
        self.strongest, self.last_finding, self.lifecycle = None, None, "new"
        self.first_step = self.last_step = self.since_step = self.steps = self.ok_windows = 0

    def coverage(self) -> Outcome | None:
        """What coverage and the decision tree state of the rule."""
        if self.strongest is None or self.strongest.status != "finding":
            return self.strongest
        finding = self._finding_with_text()
        if finding is None:
            return self.strongest
        return Outcome("finding", self.strongest.reason, severity=finding.severity)

    def has_passed(self) -> bool:
        """Whether the finding is of what was over when it was reported."""
        return isinstance(self._finding_with_text(), Passed)

    def finding(self) -> Finding | None:
        """The finding up to now; None where the rule has none."""
        outcome = self._finding_with_text()
        if outcome is None:
            return None
        return Finding(
            rule=self.rule_id,
            optimizer=self.optimizer,
            severity=outcome.severity,
            first_step=self.first_step,
            last_step=self.last_step,
            steps=self.steps,
            title=outcome.title,
            summary=outcome.summary,
            fix=outcome.fix,
            evidence=outcome.evidence,
            lifecycle=self.lifecycle,
            since_step=self.since_step,
        )

    def _finding_with_text(self) -> Outcome | None:
        """The last outcome that is a finding; its text is built at most once."""
        if self.last_finding is None:
            return None
        try:
            self.last_finding = self.last_finding.with_text()
        except Exception as error:  # the rule's own code builds the text
            self.strongest, self.last_finding = failed(error), None
        return self.last_finding

    def carry(self, evaluation: EvaluationResult) -> None:
        """Continue from a stored evaluation of steps whose records are pruned."""
        own = (self.rule_id, self.optimizer)
        coverage = evaluation.coverage.get(self.rule_id)
        for finding in evaluation.findings:
            if (finding.rule, finding.optimizer) == own:
                self._carry_finding(finding)
                self.strongest = Outcome("finding", _reason_of(coverage or ""))
                return
        outcome = None if coverage is None else outcome_of_coverage(coverage)
        self.strongest = outcome if evaluation.coverage else LOST

    def _carry_finding(self, finding: Finding) -> None:
        self.last_finding = Outcome(
            "finding",
            severity=finding.severity,
            title=finding.title,
            summary=finding.summary,
            fix=finding.fix,
            evidence=finding.evidence,
        )
        self.first_step, self.last_step = finding.first_step, finding.last_step
        self.since_step, self.steps = finding.since_step, finding.steps
        self.lifecycle = finding.lifecycle

    # ------------------------------------------------------------ snapshots

    def outcomes_state(self) -> RuleOutcomesState:
        """As data, with the text of the finding."""
        finding = self._finding_with_text()
        return RuleOutcomesState(
            rule=self.rule_id,
            optimizer=self.optimizer,
            strongest=_outcome_state(self.strongest),
            last_finding=_outcome_state(finding),
            first_step=self.first_step,
            last_step=self.last_step,
            since_step=self.since_step,
            steps=self.steps,
            lifecycle=self.lifecycle,
            ok_windows=self.ok_windows,
        )

    def restore_outcomes(self, state: RuleOutcomesState) -> None:
        """Continue from a state that ``outcomes_state`` returned."""
        self.strongest = _outcome(state.strongest)
        self.last_finding = _outcome(state.last_finding)
        self.first_step, self.last_step = state.first_step, state.last_step
        self.since_step, self.steps = state.since_step, state.steps
        self.lifecycle, self.ok_windows = state.lifecycle, state.ok_windows


def stronger(first: Outcome | None, second: Outcome) -> Outcome:
    """Of two outcomes of one rule, the one that coverage shows; the first of equal ones.

    That one more window is needed is no reason where there is another one. Of doubts, the last one
    is of the most that is known.
    """
    if first is None or (isinstance(second, Doubt) and first.status == "ok"):
        return second
    if _strength(second) == _strength(first):
        return second if isinstance(second, Doubt) or first.reason == ONE_MORE else first
    return second if _strength(second) > _strength(first) else first


def _replaces(first: Outcome | None, second: Outcome) -> bool:
    """Whether a later step has another reason why the rule is not measured: the first is stale."""
    if first is None or isinstance(first, Failure) or second.reason == ONE_MORE:
        return False
    return first.status == second.status == "not_measured"


def _strength(outcome: Outcome) -> tuple[int, int]:
    """Of two findings, the graver one is stronger."""
    if isinstance(outcome, Failure):
        return _STRENGTH_OF_FAILURE, 0
    return _STRENGTH[outcome.status], SEVERITIES.index(outcome.severity)


# Where the records of earlier steps and their coverage are lost: later steps do not replace them.
LOST = Failure("not_measured", "the results of an earlier evaluation are lost")

_FAILED_REASON = "the rule failed: "
# Reasons of failures: later steps do not make up for them.
_FAILURE_REASONS = re.compile(rf"{_FAILED_REASON}|step \d+ could not be (observed|evaluated): ")


def failed(error: Exception) -> Outcome:
    """The outcome of a rule that raised an error.

    Raises a ``MemoryError`` again: it does not depend on the records, so it must leave no trace.
    """
    if isinstance(error, MemoryError):
        raise error
    return Failure("not_measured", f"{_FAILED_REASON}{type(error).__name__}: {error}")


def missed(reason: str) -> Outcome:
    """The outcome of a rule for a step that could not be observed or evaluated."""
    return Failure("not_measured", reason)


def outcome_of_coverage(text: str) -> Outcome:
    """The outcome behind a rule's entry in a stored coverage.

    A finding there is one on another optimizer: nothing is known of this one, and the weakest
    outcome stands for it. A rule that failed or missed a step stays failed: later steps do not make
    up for earlier ones.
    """
    status, reason = text.partition(": ")[0], _reason_of(text)
    if status == "ok":
        return Outcome("ok", reason)
    if status in ("finding", "not_applicable"):
        return Outcome("not_applicable", reason if status == "not_applicable" else "")
    kind = Failure if _FAILURE_REASONS.match(reason) else Outcome
    return kind("not_measured", reason)


def _reason_of(coverage: str) -> str:
    """The reason in a rule's entry in a stored coverage."""
    return coverage.partition(": ")[2].partition(EVALUATED_WITH)[0].removesuffix("; ")


def _outcome_state(outcome: Outcome | None) -> OutcomeState | None:
    if outcome is None:
        return None
    return OutcomeState(
        status=outcome.status,
        reason=outcome.reason,
        severity=outcome.severity,
        title=outcome.title,
        summary=outcome.summary,
        fix=outcome.fix,
        evidence=outcome.evidence,
        failed=isinstance(outcome, Failure),
        passed=isinstance(outcome, Passed),
        doubted=isinstance(outcome, Doubt),
    )


def _outcome(state: OutcomeState | None) -> Outcome | None:
    if state is None:
        return None
    marks = {Failure: state.failed, Passed: state.passed, Doubt: state.doubted}
    kind = next((kind for kind, is_marked in marks.items() if is_marked), Outcome)
    return kind(
        state.status,
        reason=state.reason,
        severity=state.severity,
        title=state.title,
        summary=state.summary,
        fix=state.fix,
        evidence=state.evidence,
    )
