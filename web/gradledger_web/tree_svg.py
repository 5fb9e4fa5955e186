"""The decision tree as it is drawn: answers, evidence, and the way to the primary suspect."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gradledger_web import formatting

if TYPE_CHECKING:
    from gradledger_monitor.model.findings import EvaluationResult, Finding, TreeNode

Latest = Mapping[str, Sequence[float | None]]

EVALUATION_PREFIX = "evaluation "  # begins the name of a metric among the figures

ANSWERS = {
    "ok": "Yes",
    "finding": "No",
    "not_measured": "Not measured",
    "not_applicable": "Does not apply",
}


@dataclass(frozen=True)
class Node:
    """One question, answered."""

    node: str
    question: str
    status: str
    answer: str
    reason: str
    evidence: str
    findings: list[Finding]
    on_path: bool  # the way from the top to the primary suspect, or to the end
    suspect: Finding | None


def build_nodes(
    evaluation: EvaluationResult, causes: Sequence[Finding], latest: Latest, ranks: int
) -> list[Node]:
    """The nodes in order; ``latest`` are the figures of the last steps."""
    primary = next((f for f in causes if f.severity != "info"), None)
    nodes: list[Node] = []
    walking = True
    for each in evaluation.tree:
        found = [
            f for f in evaluation.findings if each.status == "finding" and _names(each, f.rule)
        ]
        here = [f for f in causes if f in found] or found
        suspect = primary if primary is not None and primary in here else None
        nodes.append(_node(each, here, suspect, walking, _evidence(each.node, latest, ranks)))
        walking = walking and suspect is None
    return nodes


def _names(node: TreeNode, rule: str) -> bool:
    return rule in node.reason.split(", ")


def _node(
    node: TreeNode, found: list[Finding], suspect: Finding | None, on_path: bool, evidence: str
) -> Node:
    known = node.status in ("ok", "finding")
    return Node(
        node=node.node,
        question=node.question,
        status=node.status,
        answer=ANSWERS[node.status],
        reason="" if known else node.reason,
        evidence=evidence if known else "",
        findings=found,
        on_path=on_path,
        suspect=suspect,
    )


def _evidence(node: str, latest: Latest, ranks: int) -> str:
    """What was last measured of it, in a few words."""
    last = {name: _last(values) for name, values in latest.items()}
    told = _TOLD.get(node, lambda _, __: [])(last, ranks)
    return ", ".join(text for text in told if text)


def _last(values: Sequence[float | None]) -> float | None:
    return next((value for value in reversed(values) if value is not None), None)


Last = Mapping[str, float | None]


def _say(last: Last, name: str, words: str) -> str:
    value = last.get(name)
    if value is None:
        return ""
    written = formatting.percent if name == "misallocation" else formatting.figure
    return words.format(written(value))


def _count(last: Last, name: str, one: str, several: str) -> str:
    value = last.get(name)
    if value is None:
        return ""
    return f"{formatting.figure(value)} {one}{'' if value == 1 else several} a step"


def _of_loss(last: Last, _: int) -> list[str]:
    return [
        _say(last, "loss_reported", "reported {}"),
        _say(last, "loss_token", "token-weighted {}"),
    ]


def _of_reduction(last: Last, _: int) -> list[str]:
    return [_say(last, "balance", "B = {}"), _say(last, "misallocation", "d = {}")]


def _of_ddp(last: Last, ranks: int) -> list[str]:
    told = f"{ranks} ranks" if ranks > 1 else ""
    return [told, _count(last, "collectives", "collective", "s") if ranks > 1 else ""]


def _of_loop(last: Last, _: int) -> list[str]:
    return [
        _count(last, "micro_batches", "micro-batch", "es"),
        _say(last, "lr", "learning rate {}"),
    ]


def _of_norm(last: Last, _: int) -> list[str]:
    limit = _say(last, "clip_limit", "clipped at {}")
    return [_say(last, "norm", "norm {}"), limit]


def _of_scaler(last: Last, _: int) -> list[str]:
    return [_say(last, "scale", "scale {}")]


def _of_validation(last: Last, _: int) -> list[str]:
    told = {
        name.removeprefix(EVALUATION_PREFIX): v
        for name, v in last.items()
        if EVALUATION_PREFIX in name
    }
    return [f"{name} {formatting.figure(value)}" for name, value in told.items()]


_TOLD = {
    "loss": _of_loss,
    "validation": _of_validation,
    "reduction": _of_reduction,
    "scaler": _of_scaler,
    "ddp": _of_ddp,
    "loop": _of_loop,
    "norm": _of_norm,
}
