"""What one rule said of one optimizer's steps, folded into a line of the judgement (pure)."""

from __future__ import annotations

import re
from dataclasses import dataclass

from gradledger_monitor.evaluation.snapshot_codec import LineState, OutcomeState
from gradledger_monitor.model.findings import Failure, Finding, Lifecycle, Outcome, Status
from gradledger_monitor.rules.overrides import EVALUATED_WITH

# A finding that no window of the last so many shows is resolved.
RESOLVED_AFTER = 20

_STRENGTH: dict[Status, int] = {"finding": 4, "ok": 2, "not_measured": 1, "not_applicable": 0}
_FAILED = 3
_FOUND = Outcome("finding")


@dataclass
class Line:
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
        self.outcome = stronger(self.outcome, outcome)
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
            self.claim = said = self.claim.with_text()
        except Exception as error:
            self.outcome, self.claim = failed(error), None
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

    # ------------------------------------------------------------ snapshots

    def state(self) -> LineState:
        """As data. The words of the last claim are put together for it."""
        self.tell()
        return LineState(
            rule=self.rule,
            optimizer=self.optimizer,
            outcome=_outcome_state(self.outcome),
            claim=_outcome_state(self.claim),
            first_step=self.first_step,
            last_step=self.last_step,
            since_step=self.since_step,
            steps=self.steps,
            lifecycle=self.lifecycle,
            quiet=self.quiet,
        )

    def restore(self, state: LineState) -> None:
        """Go on from what ``state`` gave."""
        self.outcome, self.claim = _outcome(state.outcome), _outcome(state.claim)
        self.first_step, self.last_step = state.first_step, state.last_step
        self.since_step, self.steps = state.since_step, state.steps
        self.lifecycle, self.quiet = state.lifecycle, state.quiet

    def carry(self, finding: Finding | None, outcome: Outcome | None) -> None:
        """Go on from a stored finding or, where there is none, from a stored outcome."""
        if finding is None:
            self.outcome = outcome
            return
        self.outcome = _FOUND
        self.claim = Outcome(
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


def stronger(known: Outcome | None, new: Outcome) -> Outcome:
    """Of two outcomes of one rule, the one that coverage tells."""
    if known is None:
        return new
    return new if _strength(new) > _strength(known) else known


_FAILED_REASON = "the rule failed: "
# Reasons that later steps do not make up for: of a rule that failed, and of a step that it missed.
_LASTING = re.compile(rf"{_FAILED_REASON}|step \d+ could not be (observed|evaluated): ")


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


def _strength(outcome: Outcome) -> int:
    return _FAILED if isinstance(outcome, Failure) else _STRENGTH[outcome.status]


def covered(text: str) -> Outcome:
    """The outcome behind a rule's entry in a stored coverage.

    A finding there is of another optimizer: of this one, nothing is known, and the weakest outcome
    stands for it. A rule that failed or missed a step stays failed: later steps do not make
    up for earlier ones.
    """
    status, _, reason = text.partition(": ")
    reason = reason.partition(EVALUATED_WITH)[0].removesuffix("; ")
    if status == "ok":
        return Outcome("ok")
    if status in ("finding", "not_applicable"):
        return Outcome("not_applicable", reason)
    kind = Failure if _LASTING.match(reason) else Outcome
    return kind("not_measured", reason)


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
    )


def _outcome(state: OutcomeState | None) -> Outcome | None:
    if state is None:
        return None
    kind = Failure if state.failed else Outcome
    return kind(
        state.status,
        reason=state.reason,
        severity=state.severity,
        title=state.title,
        summary=state.summary,
        fix=state.fix,
        evidence=state.evidence,
    )
