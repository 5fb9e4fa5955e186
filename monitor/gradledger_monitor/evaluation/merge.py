"""Merges the results of several trainings of one command into one result (pure)."""

from __future__ import annotations

from collections.abc import Sequence

from gradledger_monitor.model.findings import VERDICTS, EvaluationResult, TreeNode

_STATUSES = ("not_applicable", "ok", "not_measured", "finding")  # the worst one last


def merge_results(results: Sequence[EvaluationResult]) -> EvaluationResult:
    """The findings of all results; for each rule, question and the verdict, the worst of all."""
    coverage: dict[str, str] = {}
    tree: dict[str, TreeNode] = {}
    for result in results:
        for rule, text in result.coverage.items():
            coverage[rule] = max(coverage.get(rule, text), text, key=_badness)
        for node in result.tree:
            tree[node.node] = max(tree.get(node.node, node), node, key=lambda n: _badness(n.status))
    return EvaluationResult(
        verdict=max((r.verdict for r in results), key=VERDICTS.index, default="incomplete"),
        findings=[finding for result in results for finding in result.findings],
        tree=list(tree.values()),
        coverage=coverage,
    )


def _badness(coverage: str) -> int:
    return _STATUSES.index(_status(coverage))


def _status(coverage: str) -> str:
    return coverage.partition(":")[0]
