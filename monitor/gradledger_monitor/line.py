"""What one rule said of one optimizer's steps, folded into a line of the judgement (pure)."""

from __future__ import annotations

from dataclasses import dataclass

from gradledger_monitor.findings import Failure, Finding, Lifecycle, Outcome, Status

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
            self.claim = said = self.claim.told()
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


def stronger(known: Outcome | None, new: Outcome) -> Outcome:
    """Of two outcomes of one rule, the one that coverage tells."""
    if known is None:
        return new
    return new if _strength(new) > _strength(known) else known


def failed(error: Exception) -> Outcome:
    """The outcome of a rule that raised an error.

    Raises a ``MemoryError`` again: it does not depend on the records, so it must leave no trace.
    """
    if isinstance(error, MemoryError):
        raise error
    return Failure("not_measured", f"the rule failed: {type(error).__name__}: {error}")


def missed(reason: str) -> Outcome:
    """The outcome of a rule for a step that could not be evaluated."""
    return Failure("not_measured", reason)


def _strength(outcome: Outcome) -> int:
    return _FAILED if isinstance(outcome, Failure) else _STRENGTH[outcome.status]
