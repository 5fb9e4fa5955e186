"""The decision tree (DESIGN section 7): its questions, answered by the outcomes of the rules.

The questions are in the order in which a person debugs a run, from the symptom to its causes: is
anything wrong with the curves; is the gradient normalised as intended, because everything after
that depends on its size; do the scaler, the ranks and the loop handle it correctly; and last, do
its norms behave. A question does not wait for the one before it: all are answered, and inhibition
between findings (``result.py``) separates causes from symptoms.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache

from gradledger_monitor.model.findings import Outcome, Status, TreeNode, Verdict

NOTHING_RECORDED = "nothing that this depends on was recorded"

# Without a finding, the status of a question is the first of these that one of its rules has.
_STATUSES: tuple[Status, ...] = ("ok", "not_measured", "not_applicable")


@dataclass(frozen=True)
class Question:
    """A node of the tree: the rules that answer it, as patterns of their ids."""

    node: str
    text: str
    rules: tuple[str, ...]
    structural: bool = True  # while it is not measured, the verdict is not balanced
    # the rule without which nothing answers it; why it does not apply is a part of the answer
    needs: str | None = None
    besides: str = ""  # a further rule: its finding belongs here, and no other outcome of it


QUESTIONS: tuple[Question, ...] = (
    Question(
        "loss",
        "Does the training loss look normal?",
        ("loss.*", "norm.nonfinite"),
        structural=False,
        needs="loss.nonfinite",
    ),
    Question("run", "Does the run make progress?", ("run.*",), False),
    Question("validation", "Does validation agree with training?", ("eval.*",), False),
    Question(
        "reduction",
        "Is the reduction contract balanced?",
        ("reduction.*",),
        needs="reduction.token_weights_unequal",
    ),
    Question(
        "scaler",
        "Is GradScaler's order and scale healthy?",
        ("scaler.*",),
        besides="scheduler.stepped_on_skip",
    ),
    Question(
        "ddp",
        "Does DDP sync exactly once, on the last micro-batch?",
        ("ddp.*",),
    ),
    Question(
        "loop",
        "Are gradients zeroed, stepped and scheduled once per window?",
        ("loop.*", "scheduler.step_every_microbatch", "schedule.*", "batch.*"),
        besides="data.same_order_each_epoch",
    ),
    Question(
        "norm",
        "Do gradient norms vary without trending to zero or spiking?",
        (
            "norm.spike",
            "norm.vanishing*",
            "norm.exploding",
            "norm.weight_decay",
            "norm.lost_updates",
            "norm.dead_layer",
            "norm.gradient_ends",
            "clip.*",
        ),
        False,
        besides="norm.nonfinite",
    ),
)


@lru_cache(maxsize=1024)
def nodes_of(rule: str) -> Set[str]:
    """The nodes of the questions that a rule answers. Asked for every rule at each result."""
    return {
        question.node
        for question in QUESTIONS
        if any(fnmatchcase(rule, pattern) for pattern in question.rules)
    }


def is_answered_by(node: str, rule: str) -> bool:
    """Whether a finding of this rule is one at the question with this node."""
    besides = (question.besides for question in QUESTIONS if question.node == node)
    return node in nodes_of(rule) or rule in besides


def build_tree(
    coverage: Mapping[str, Outcome], required: Set[str], past: Mapping[str, str]
) -> list[TreeNode]:
    """Each question with its status; ``required`` are the rules that every run must measure.

    ``past`` are the texts of findings that are resolved, by rule.
    """
    return [_node(question, coverage, required, past) for question in QUESTIONS]


def _node(
    question: Question,
    coverage: Mapping[str, Outcome],
    required: Set[str],
    past: Mapping[str, str],
) -> TreeNode:
    outcomes = {
        rule: outcome
        for rule, outcome in coverage.items()
        if question.node in nodes_of(rule)
        or (rule == question.besides and outcome.status == "finding")
    }
    if question.needs is not None:
        required = required | {question.needs}
    status = _status(outcomes, required)
    reason = _reason(status, outcomes, required)
    if status == "ok" and not reason and question.needs in outcomes:
        reason = outcomes[question.needs].reason
    before = "; ".join(text for r, text in past.items() if is_answered_by(question.node, r))
    return TreeNode(question.node, question.text, status, reason, before)


def _status(outcomes: Mapping[str, Outcome], required: Set[str]) -> Status:
    """A finding comes first; then a required rule without measurement; then information; then ok.

    Information about a balance does not answer whether the weights behind it are right.
    """
    if not outcomes:
        return "not_measured"
    findings = [outcome for outcome in outcomes.values() if outcome.status == "finding"]
    if any(outcome.severity != "info" for outcome in findings):
        return "finding"
    if any(outcomes[r].status == "not_measured" for r in outcomes if r in required):
        return "not_measured"
    if findings:
        return "finding"
    statuses = {outcome.status for outcome in outcomes.values()}
    return next(status for status in _STATUSES if status in statuses)


def _reason(status: Status, outcomes: Mapping[str, Outcome], required: Set[str]) -> str:
    if status == "finding":
        texts = {rule: o.reason for rule, o in outcomes.items() if o.status == status}
        return ", ".join(f"{rule}: {text}" if text else rule for rule, text in texts.items())
    if status == "ok":  # what a rule states of it: which objectives it judged
        reasons = {o.reason: None for o in outcomes.values() if o.status == "ok" and o.reason}
        return "; ".join(r for r in reasons if not any(r in o for o in reasons if o != r))
    ranked = [
        (rule not in required, outcome.reason)
        for rule, outcome in outcomes.items()
        if outcome.status == status
    ]
    return min(ranked, default=(True, NOTHING_RECORDED), key=lambda pair: pair[0])[1]


def verdict_of(tree: Sequence[TreeNode], severities: Sequence[str]) -> Verdict:
    """The verdict, from the tree and the severities of the findings that count."""
    if "error" in severities:
        return "broken"
    if "warning" in severities:
        return "suspect"
    structural = {question.node for question in QUESTIONS if question.structural}
    unclear = any(n.node in structural and n.status == "not_measured" for n in tree)
    return "incomplete" if unclear else "balanced"
