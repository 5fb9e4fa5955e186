"""What a judgement says in one sentence, and how its parts are ordered for reading."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gradledger_web import formatting

if TYPE_CHECKING:
    from gradledger_monitor.model.findings import EvaluationResult, Finding

_WEIGHT = {"error": 0, "warning": 1, "info": 2}


@dataclass(frozen=True)
class Summary:
    """A judgement arranged for a person: the claim first, then its causes, then its symptoms."""

    sentence: str
    detail: str
    causes: list[Finding]
    symptoms: list[Finding]


def summarize(evaluation: EvaluationResult, steps: int) -> Summary:
    """Arrange a judgement made after so many optimizer steps."""
    ordered = sorted(evaluation.findings, key=lambda f: (f.lifecycle == "resolved", _rank(f)))
    causes = [finding for finding in ordered if finding.inhibited_by is None]
    symptoms = [finding for finding in ordered if finding.inhibited_by is not None]
    sentence, detail = _claim(evaluation, causes, steps)
    return Summary(sentence, detail, causes, symptoms)


def _rank(finding: Finding) -> int:
    return _WEIGHT[finding.severity]


def _claim(evaluation: EvaluationResult, causes: list[Finding], steps: int) -> tuple[str, str]:
    if steps == 0:
        return "No optimizer step has been judged yet.", "The first one decides most questions."
    if causes and evaluation.verdict in ("broken", "suspect"):
        return f"{causes[0].title.rstrip('.')}.", _others(len(causes) - 1)
    judged = formatting.plural(steps, "optimizer step")
    if evaluation.verdict == "incomplete":
        return f"Nothing was found in {judged}, but not everything could be seen.", _unseen(
            evaluation
        )
    return f"No fault in {judged}, and every check that applies was made.", _noted(len(causes))


def _others(number: int) -> str:
    return f"{formatting.plural(number, 'more finding')} below." if number else ""


def _noted(number: int) -> str:
    return f"{formatting.plural(number, 'remark')} below." if number else ""


def _unseen(evaluation: EvaluationResult) -> str:
    nodes = [node.node for node in evaluation.tree if node.status == "not_measured"]
    return f"Not measured: {', '.join(nodes)}." if nodes else ""


@dataclass(frozen=True)
class Coverage:
    """One rule's line in the coverage panel."""

    rule: str
    status: str
    reason: str


def coverage(evaluation: EvaluationResult) -> list[Coverage]:
    """What was checked, with the reason where it was not."""
    return [_covered(rule, text) for rule, text in sorted(evaluation.coverage.items())]


def _covered(rule: str, text: str) -> Coverage:
    status, _, reason = text.partition(":")
    return Coverage(rule, status.strip(), reason.strip())


def tally(covered: list[Coverage]) -> dict[str, int]:
    """How many rules gave each status."""
    return dict(Counter(line.status for line in covered))
