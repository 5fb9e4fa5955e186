"""Outcomes of rules, and the findings and verdict that the evaluation makes of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from msgspec import Struct

from gradledger_monitor.model.code.locations import CodeLocation

Severity = Literal["info", "warning", "error"]
Status = Literal["ok", "finding", "not_applicable", "not_measured"]
Lifecycle = Literal["new", "ongoing", "resolved", "regressed"]
Verdict = Literal["balanced", "suspect", "broken", "incomplete"]

# The only two orders, both ascending.
SEVERITIES: tuple[Severity, ...] = ("info", "warning", "error")
VERDICTS: tuple[Verdict, ...] = ("balanced", "incomplete", "suspect", "broken")


class Outcome(Struct, frozen=True):
    """One rule's answer for one optimizer step.

    A claim that is repeated at every step may leave its text to ``deferred``, which is called for
    the step that is shown only.
    """

    status: Status
    reason: str = ""  # why it does not apply or was not measured
    severity: Severity = "info"
    title: str = ""
    summary: str = ""
    fix: str = ""
    evidence: dict[str, Any] = {}
    deferred: Callable[[], Outcome] | None = None
    # The steps that a finding is about, ascending, where these are not the evaluated one alone: a
    # window may show what the windows before it were.
    steps: tuple[int, ...] = ()

    def with_text(self) -> Outcome:
        """This outcome with its severity, text and evidence."""
        return self if self.deferred is None else self.deferred()


class Failure(Outcome, frozen=True):
    """A rule that raised an error, or missed a step that could not be evaluated, has not measured
    the run, whatever it reported for other steps."""


class Doubt(Outcome, frozen=True):
    """Not measured from this step on, although earlier steps were ``ok``; a later ``ok`` settles
    it."""


class Passed(Outcome, frozen=True):
    """A finding that was over when it was reported: as information, it answers no question."""


class Withdrawal(Outcome, frozen=True):
    """What this step shows makes the rule's earlier finding untrue: it is a finding no more."""


@dataclass(frozen=True)
class Acknowledgement:
    """A person's note that a finding is known. It remains a finding; nothing is switched off."""

    note: str
    by: str | None  # None if the caller is anonymous
    at: float  # Unix seconds
    until: float | None = None  # Unix seconds at which it expires


@dataclass(frozen=True)
class Comment:
    """What a person wrote about the findings of a rule, and to whom they were assigned."""

    text: str
    by: str | None  # None if the caller is anonymous
    at: float  # Unix seconds
    assignee: str | None = None  # None: as before; "": nobody


@dataclass(frozen=True)
class Finding:
    """A rule's claim about a run: the outcomes of all its steps merged into one."""

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
    # What the rule is about in the script's code, the most important first; empty if not seen.
    code: tuple[CodeLocation, ...] = ()


FOR_THIS_LINE, GENERIC = "Fix of this line", "Generic fix"
CHANGE_AT = "# change at line"  # begins a change that is no exact diff


def is_generic(fix: str) -> bool:
    """Whether a fix is an example for any script, and not a change of the lines of this one."""
    return bool(fix) and not fix.startswith(("--- a/", CHANGE_AT))


def fix_title(fix: str) -> str:
    """The heading of a fix."""
    return GENERIC if is_generic(fix) else FOR_THIS_LINE


@dataclass(frozen=True)
class TreeNode:
    """One question of the decision tree, answered."""

    node: str
    question: str
    status: Status
    reason: str = ""
    past: str = ""  # findings that are resolved: the answer is that of the present

    @property
    def detail(self) -> str:
        """The reason of the answer, and what was before."""
        return "; ".join(filter(None, (self.reason, self.past)))


@dataclass(frozen=True)
class EvaluationResult:
    """The verdict on a run so far, with its findings, decision tree and coverage."""

    verdict: Verdict
    findings: list[Finding]
    tree: list[TreeNode]
    coverage: dict[str, str]
