"""What rules say, and what the engine makes of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from msgspec import Struct

Severity = Literal["info", "warning", "error"]
Status = Literal["ok", "finding", "not_applicable", "not_measured"]
Lifecycle = Literal["new", "ongoing", "resolved", "regressed"]
Verdict = Literal["balanced", "suspect", "broken", "incomplete"]

SEVERITIES: tuple[Severity, ...] = ("info", "warning", "error")


class Outcome(Struct, frozen=True):
    """One rule's answer for one optimizer step.

    A claim that is made anew at every step may leave its words to ``later``: they are put together
    for the step that is shown, and for no other.
    """

    status: Status
    reason: str = ""  # why it does not apply or was not measured
    severity: Severity = "info"
    title: str = ""
    summary: str = ""
    fix: str = ""
    evidence: dict[str, Any] = {}
    later: Callable[[], Outcome] | None = None

    def told(self) -> Outcome:
        """With its words."""
        return self if self.later is None else self.later()


class Failure(Outcome, frozen=True):
    """A rule that raised an error, or missed a step that could not be evaluated, has not measured
    the run, whatever it reported for other steps."""


@dataclass(frozen=True)
class Acknowledgement:
    """A person's word that a finding is known. It stays a finding; nothing is switched off."""

    note: str
    by: str | None  # who said so, where that is known
    at: float  # Unix seconds
    until: float | None = None  # Unix seconds after which it counts no more


@dataclass
class Finding:
    """A rule's claim about a run: the outcomes of all its steps folded into one."""

    rule: str
    optimizer: int
    severity: Severity
    first_step: int
    last_step: int
    steps: int
    title: str
    summary: str
    fix: str
    evidence: dict[str, Any]
    lifecycle: Lifecycle = "new"
    inhibited_by: str | None = None
    since_step: int = 0  # where it began, or began again after it was resolved
    acknowledged: Acknowledgement | None = None


@dataclass(frozen=True)
class TreeNode:
    """One question of the decision tree, answered."""

    node: str
    question: str
    status: Status
    reason: str = ""


@dataclass(frozen=True)
class EvaluationResult:
    """Everything that the rules say about a run so far."""

    verdict: Verdict
    findings: list[Finding]
    tree: list[TreeNode]
    coverage: dict[str, str]
