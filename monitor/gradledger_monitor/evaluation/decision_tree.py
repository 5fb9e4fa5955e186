"""The decision tree (DESIGN section 7): the questions, answered from the rules' outcomes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from fnmatch import fnmatchcase

from gradledger_monitor.model.findings import Outcome, Status, TreeNode, Verdict

NOTHING_SEEN = "nothing that tells was streamed"


@dataclass(frozen=True)
class Question:
    """A node of the tree: the rules that answer it, as patterns of their ids."""

    node: str
    text: str
    rules: tuple[str, ...]
    structural: bool = True  # unmeasured, it spoils a balanced verdict


QUESTIONS: tuple[Question, ...] = (
    Question("loss", "Does the training loss look normal?", ("norm.nonfinite", "run.*"), False),
    Question("validation", "Does validation agree with training?", ("eval.*",), False),
    Question("reduction", "Is the reduction contract balanced?", ("reduction.*",)),
    Question(
        "scaler",
        "Is GradScaler's order and scale healthy?",
        ("scaler.*", "scheduler.stepped_on_skip"),
    ),
    Question("ddp", "Does DDP sync exactly once, on the last micro-batch?", ("ddp.*", "data.*")),
    Question(
        "loop",
        "Are gradients zeroed, stepped and scheduled once per window?",
        ("loop.*", "scheduler.step_every_microbatch", "batch.*"),
    ),
    Question(
        "norm",
        "Do gradient norms vary without trending to zero or spiking?",
        ("norm.spike", "norm.vanishing", "norm.exploding", "clip.*"),
        False,
    ),
)


def answer(coverage: Mapping[str, Outcome], structural: Set[str]) -> list[TreeNode]:
    """Each question with its status; ``structural`` are the rules that every run must measure."""
    return [_answer(question, coverage, structural) for question in QUESTIONS]


def _answer(question: Question, coverage: Mapping[str, Outcome], structural: Set[str]) -> TreeNode:
    outcomes = {
        rule: outcome
        for rule, outcome in coverage.items()
        if any(fnmatchcase(rule, pattern) for pattern in question.rules)
    }
    status = _status(outcomes, structural)
    return TreeNode(question.node, question.text, status, _reason(status, outcomes, structural))


def _status(outcomes: Mapping[str, Outcome], structural: Set[str]) -> Status:
    """A finding wins; then what had to be measured and was not; then ok."""
    if not outcomes:
        return "not_measured"
    said = {outcome.status for outcome in outcomes.values()}
    if "finding" in said:
        return "finding"
    if any(outcomes[r].status == "not_measured" for r in outcomes if r in structural):
        return "not_measured"
    order: tuple[Status, ...] = ("ok", "not_measured", "not_applicable")
    return next(status for status in order if status in said)


def _reason(status: Status, outcomes: Mapping[str, Outcome], structural: Set[str]) -> str:
    if status == "finding":
        return ", ".join(rule for rule, outcome in outcomes.items() if outcome.status == status)
    if status == "ok":
        return ""
    reasons = [
        (rule not in structural, outcome.reason)
        for rule, outcome in outcomes.items()
        if outcome.status == status
    ]
    return min(reasons, default=(True, NOTHING_SEEN), key=lambda pair: pair[0])[1]


def verdict(tree: list[TreeNode], severities: Sequence[str]) -> Verdict:
    """The run's answer, from the tree and the severities of findings that are not inhibited."""
    if "error" in severities:
        return "broken"
    if "warning" in severities:
        return "suspect"
    structural = {question.node for question in QUESTIONS if question.structural}
    unclear = any(n.node in structural and n.status == "not_measured" for n in tree)
    return "incomplete" if unclear else "balanced"
