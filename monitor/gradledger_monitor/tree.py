"""The decision tree (DESIGN section 7): the questions, answered from the rules' outcomes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gradledger_monitor.findings import Outcome, Status, TreeNode, Verdict


@dataclass(frozen=True)
class Question:
    """A node of the tree: the families of rules that answer it."""

    node: str
    text: str
    families: tuple[str, ...]
    structural: bool = True  # unmeasured, it spoils a balanced verdict


QUESTIONS: tuple[Question, ...] = (
    Question("reduction", "Is the reduction contract balanced?", ("reduction",)),
    Question("loop", "Are gradients zeroed, stepped and scheduled once per window?", ("loop",)),
)

_WORST: tuple[Status, ...] = ("finding", "ok", "not_measured", "not_applicable")


def answer(coverage: Mapping[str, Outcome]) -> list[TreeNode]:
    """Each question with its status: a finding wins; ok needs one rule that measured."""
    return [_answer(question, coverage) for question in QUESTIONS]


def _answer(question: Question, coverage: Mapping[str, Outcome]) -> TreeNode:
    outcomes = {
        rule: outcome
        for rule, outcome in coverage.items()
        if rule.split(".", 1)[0] in question.families
    }
    status: Status = "not_measured"
    for candidate in _WORST:
        if any(outcome.status == candidate for outcome in outcomes.values()):
            status = candidate
            break
    reason = _reason(status, outcomes) if outcomes else "no optimizer step was seen"
    return TreeNode(question.node, question.text, status, reason)


def _reason(status: Status, outcomes: Mapping[str, Outcome]) -> str:
    if status == "finding":
        return ", ".join(rule for rule, outcome in outcomes.items() if outcome.status == status)
    if status == "ok":
        return ""
    return next(outcome.reason for outcome in outcomes.values() if outcome.status == status)


def verdict(tree: list[TreeNode], severities: list[str]) -> Verdict:
    """The run's answer, from the tree and the severities of findings that are not inhibited."""
    if "error" in severities:
        return "broken"
    if "warning" in severities:
        return "suspect"
    structural = {question.node for question in QUESTIONS if question.structural}
    unclear = any(n.node in structural and n.status == "not_measured" for n in tree)
    return "incomplete" if unclear else "balanced"
