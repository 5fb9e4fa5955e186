"""Several judgements as one, for a command that trained more than once (pure)."""

from __future__ import annotations

from collections.abc import Sequence

from gradledger_monitor.model.findings import VERDICTS, EvaluationResult, TreeNode

_STATUSES = ("not_applicable", "ok", "not_measured", "finding")


def merge_results(judgements: Sequence[EvaluationResult]) -> EvaluationResult:
    """Every finding of all; of two answers to one question, the worse one."""
    coverage: dict[str, str] = {}
    tree: dict[str, TreeNode] = {}
    for evaluation in judgements:
        for rule, said in evaluation.coverage.items():
            coverage[rule] = max(coverage.get(rule, said), said, key=_badness)
        for node in evaluation.tree:
            tree[node.node] = max(tree.get(node.node, node), node, key=lambda n: _badness(n.status))
    return EvaluationResult(
        max((j.verdict for j in judgements), key=VERDICTS.index, default="incomplete"),
        [finding for evaluation in judgements for finding in evaluation.findings],
        list(tree.values()),
        coverage,
    )


def _badness(said: str) -> int:
    return _STATUSES.index(said.partition(":")[0])


def anything_measured(evaluation: EvaluationResult) -> bool:
    """Whether at least one rule had something to look at."""
    said = {answer.partition(":")[0] for answer in evaluation.coverage.values()}
    return bool(said & {"ok", "finding"})
