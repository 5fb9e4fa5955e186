"""A command that trained more than once gets one result, which contains all findings."""

from __future__ import annotations

from gradledger_monitor.evaluation.merge import merge_results
from gradledger_monitor.model.findings import EvaluationResult, Finding, Status, TreeNode, Verdict

RULE = "reduction.token_weights_unequal"


def evaluation(verdict: Verdict, status: Status, *findings: Finding) -> EvaluationResult:
    """The result of one training."""
    texts = {"not_measured": "not_measured: no loss", "not_applicable": "not_applicable: one rank"}
    node = TreeNode("reduction", "Is it balanced?", status)
    return EvaluationResult(verdict, list(findings), [node], {RULE: texts.get(status, status)})


def finding_at(step: int) -> Finding:
    """A finding, identified by its step."""
    return Finding(RULE, 0, "error", step, step, 1, "title", "summary", "fix", {})


def test_one_result_is_unchanged() -> None:
    alone = evaluation("broken", "finding", finding_at(1))
    assert merge_results([alone]) == alone


def test_all_findings_are_kept_in_order() -> None:
    first = evaluation("broken", "finding", finding_at(1), finding_at(2))
    second = evaluation("broken", "finding", finding_at(1))
    assert [f.first_step for f in merge_results([first, second]).findings] == [1, 2, 1]


def test_the_worse_result_counts_in_any_order() -> None:
    good, bad = evaluation("balanced", "ok"), evaluation("broken", "finding", finding_at(3))
    for pair in ([good, bad], [bad, good]):
        result = merge_results(pair)
        assert result.verdict == "broken"
        assert result.tree[0].status == "finding"
        assert result.coverage == {RULE: "finding"}


def test_what_one_training_did_not_measure_is_not_covered_by_another() -> None:
    result = merge_results([evaluation("incomplete", "not_measured"), evaluation("balanced", "ok")])
    assert result.verdict == "incomplete"
    assert result.coverage == {RULE: "not_measured: no loss"}


def test_no_training_at_all_is_incomplete() -> None:
    assert merge_results([]) == EvaluationResult("incomplete", [], [], {})
