"""The decision tree as the run page shows it: answers, evidence, and the path to the suspect."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gradledger_monitor.evaluation.decision_tree import is_answered_by
from gradledger_monitor.model.findings import SEVERITIES
from gradledger_web import formatting, glossary

if TYPE_CHECKING:
    from gradledger_monitor.model.findings import EvaluationResult, Finding, TreeNode

Columns = Mapping[str, Sequence[float | None]]
LastValues = Mapping[str, "LastValue"]

EVALUATION_PREFIX = "evaluation "  # marks evaluation metrics among the figures

SAME = "as above"
SPIKE = "norm.spike"
_TOLERANCE = 0.01  # of a balance or a misallocation: smaller differences are rounding


@dataclass(frozen=True)
class LastValue:
    """The last measured value of a figure."""

    value: float
    step: int | None  # at which it was measured, if that is not the last step


@dataclass(frozen=True)
class Node:
    """One question with its answer."""

    node: str
    question: str
    status: str
    answer: str
    reason: str
    past: str  # what was, of findings that are resolved
    evidence: str
    severity: str  # of its worst finding; empty if it has none
    findings: list[Finding]
    on_path: bool  # on the path from the root to the primary suspect, or to the end
    suspect: Finding | None


def build_nodes(
    evaluation: EvaluationResult, causes: Sequence[Finding], latest: Columns, ranks: int
) -> list[Node]:
    """The nodes in order; ``latest`` holds the figures of the last steps."""
    primary = next((finding for finding in causes if finding.severity != "info"), None)
    last = dict(_last_values(latest))
    nodes: list[Node] = []
    on_path = True
    reason = ""
    for tree_node in evaluation.tree:
        findings = _findings_of(tree_node, evaluation, causes)
        suspect = primary if primary is not None and primary in findings else None
        shown = _wrong(last) if tree_node.status == "finding" else last
        spikes = _spikes(evaluation) if tree_node.node == "norm" else ""
        evidence = ", ".join(filter(None, [spikes, *_evidence(tree_node.node, shown, ranks)]))
        node = _node(tree_node, findings, suspect, on_path, evidence)
        nodes.append(replace(node, reason=SAME) if node.reason and node.reason == reason else node)
        reason = node.reason
        on_path = on_path and suspect is None
    return nodes


def _findings_of(
    node: TreeNode, evaluation: EvaluationResult, causes: Sequence[Finding]
) -> list[Finding]:
    """The causes at a node; its symptoms if it has no cause."""
    if node.status != "finding":
        return []
    findings = [f for f in evaluation.findings if is_answered_by(node.node, f.rule)]
    return [finding for finding in causes if finding in findings] or findings


def _node(
    node: TreeNode,
    findings: list[Finding],
    suspect: Finding | None,
    on_path: bool,
    evidence: str,
) -> Node:
    answered = node.status in ("ok", "finding")
    return Node(
        node=node.node,
        question=node.question,
        status=node.status,
        answer=glossary.ANSWERS[node.status],
        reason="" if answered else node.reason,
        past=node.past,
        evidence=evidence if answered else "",
        severity=max((f.severity for f in findings), key=SEVERITIES.index, default=""),
        findings=findings,
        on_path=on_path,
        suspect=suspect,
    )


# ---------------------------------------------------------------- evidence


def _last_values(columns: Columns) -> Iterator[tuple[str, LastValue]]:
    """The last measured value of each figure. An evaluation has its own steps."""
    steps = columns.get("step", ())
    for name, values in columns.items():
        measured = [(index, value) for index, value in enumerate(values) if value is not None]
        if measured:
            index, value = measured[-1]
            earlier = not name.startswith(EVALUATION_PREFIX) and index < len(steps) - 1
            yield name, LastValue(value, int(steps[index] or 0) if earlier else None)


def _evidence(node: str, last: LastValues, ranks: int) -> list[str]:
    """The last measured values that answer a question, as short texts."""
    if node == "ddp":
        per_step = _per_step(last, "collectives", "collective")
        in_backward = f"{per_step} in backward" if per_step else ""
        return [formatting.plural(ranks, "rank"), in_backward] if ranks > 1 else []
    return _EVIDENCE[node](last) if node in _EVIDENCE else []


def _value(last: LastValues, name: str, template: str) -> str:
    if name not in last:
        return ""
    text_of = formatting.percent if name == "misallocation" else formatting.figure
    return f"{template.format(text_of(last[name].value))}{_at(last[name])}"


def _at(last: LastValue) -> str:
    return "" if last.step is None else f" at step {formatting.count(last.step)}"


def _spikes(evaluation: EvaluationResult) -> str:
    """How often the norm jumped, as the rule counts it."""
    status, _, account = evaluation.coverage.get(SPIKE, "").partition(": ")
    return account.partition("; ")[0] if status in ("ok", "finding") else ""


def _per_step(last: LastValues, name: str, noun: str) -> str:
    if name not in last:
        return ""
    return f"{formatting.plural(last[name].value, noun)} per step{_at(last[name])}"


def _loss(last: LastValues) -> list[str]:
    return [
        _value(last, "loss_reported", "reported {}"),
        _value(last, "loss_token", "token-weighted {}"),
    ]


def _validation(last: LastValues) -> list[str]:
    return [
        f"{name.removeprefix(EVALUATION_PREFIX)} {formatting.figure(figure.value)}"
        for name, figure in last.items()
        if name.startswith(EVALUATION_PREFIX)
    ]


def _reduction(last: LastValues) -> list[str]:
    # the page also shows means over the last steps
    return [_value(last, "balance", "last B = {}"), _value(last, "misallocation", "last d = {}")]


def _wrong(last: LastValues) -> LastValues:
    """Without a balance or a misallocation that is right, if the other one is wrong."""
    right = {"balance": 1.0, "misallocation": 0.0}
    wrong = {n for n, at in right.items() if n in last and abs(last[n].value - at) > _TOLERANCE}
    return {n: figure for n, figure in last.items() if n not in right or n in wrong or not wrong}


def _scaler(last: LastValues) -> list[str]:
    return [_value(last, "scale", "scale {}")]


def _loop(last: LastValues) -> list[str]:
    return [
        _per_step(last, "micro_batches", "micro-batch"),
        _value(last, "lr", "learning rate {}"),
    ]


def _norm(last: LastValues) -> list[str]:
    return [_value(last, "norm", "norm {}"), _value(last, "clip_limit", "clipped at {}")]


_EVIDENCE: dict[str, Callable[[LastValues], list[str]]] = {
    "loss": _loss,
    "validation": _validation,
    "reduction": _reduction,
    "scaler": _scaler,
    "loop": _loop,
    "norm": _norm,
}
