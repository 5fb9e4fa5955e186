"""The verdict of a run as text."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gradledger_monitor.model.findings import (
    Acknowledgement,
    EvaluationResult,
    Finding,
    Severity,
    TreeNode,
    Verdict,
)
from gradledger_web import headline


def finding(rule: str, severity: Severity, inhibited_by: str | None = None) -> Finding:
    title = f"{rule} happened"
    return Finding(
        rule, 0, severity, 1, 2, 2, title, "", "", evidence={}, inhibited_by=inhibited_by
    )


def evaluation(
    verdict: Verdict, *findings: Finding, tree: tuple[TreeNode, ...] = ()
) -> EvaluationResult:
    coverage = {"a.b": "ok", "c.d": "not_applicable: no GradScaler: none"}
    return EvaluationResult(verdict, list(findings), list(tree), coverage)


def test_the_worst_cause_is_the_sentence_and_symptoms_are_separate() -> None:
    result = evaluation(
        "broken",
        finding("x.warn", "warning"),
        finding("x.sym", "error", "x.err"),
        finding("x.err", "error"),
    )
    summary = headline.summarize(result, 5)
    assert summary.sentence == "x.err happened."
    assert summary.detail == "1 more finding below."
    assert [symptom.rule for symptom in summary.symptoms] == ["x.sym"]


def test_a_verdict_with_findings_names_the_required_checks_that_were_not_measured() -> None:
    tree = (
        TreeNode("reduction", "?", "not_measured", "compiled"),
        TreeNode("norm", "?", "not_measured", "needs 20 steps"),
    )
    result = evaluation("suspect", finding("run.stalled", "warning"), tree=tree)
    assert headline.summarize(result, 5).detail == "Not measured: reduction."


def test_incomplete_names_what_was_not_measured() -> None:
    tree = (TreeNode("reduction", "?", "not_measured", "compiled"), TreeNode("loop", "?", "ok"))
    summary = headline.summarize(evaluation("incomplete", tree=tree), 5)
    assert "a required check was not measured" in summary.sentence
    assert summary.unanswered == [headline.Unanswered("reduction", "compiled", required=True)]
    both = (*tree, TreeNode("scaler", "?", "not_measured", "compiled"))
    summary = headline.summarize(evaluation("incomplete", tree=both), 5)
    assert "2 required checks were not measured" in summary.sentence
    required = headline.Unanswered("reduction, GradScaler", "compiled", required=True)
    assert summary.unanswered == [required]
    optional = (*both, TreeNode("norm", "?", "not_measured", "no gradient norm"))
    summary = headline.summarize(evaluation("incomplete", tree=optional), 5)
    assert "2 required checks were not measured" in summary.sentence
    assert summary.unanswered == [
        required,
        headline.Unanswered("course of the gradient norms", "no gradient norm", required=False),
    ]


def test_without_a_step_there_is_no_verdict_sentence() -> None:
    assert "No optimizer step" in headline.summarize(evaluation("incomplete"), 0).sentence
    summary = headline.summarize(evaluation("balanced"), 1)
    assert summary.sentence == "No problems in 1 optimizer step."


def test_balanced_names_the_optional_checks_that_were_not_measured() -> None:
    tree = (TreeNode("validation", "?", "not_measured", "none"), TreeNode("loop", "?", "ok"))
    result = evaluation("balanced", tree=tree)
    assert headline.verdict_meaning(result, 40, 1) == (
        "no problems in 40 steps (1 optional check not measured: validation loss)"
    )
    assert headline.verdict_meaning(evaluation("balanced"), 40, 2) == (
        "no problems in 40 steps on 2 ranks"
    )
    seen = (*tree, TreeNode("reduction", "?", "finding", "reduction.wrong_denominator"))
    meaning = headline.verdict_meaning(evaluation("balanced", tree=seen), 40, 1)
    assert meaning.endswith("; see reduction.wrong_denominator")


def test_balanced_names_the_losses_whose_weights_were_evaluated() -> None:
    tree = (TreeNode("reduction", "?", "ok", "equal weights: cross entropy, mean"),)
    assert headline.verdict_meaning(evaluation("balanced", tree=tree), 40, 1) == (
        "no problems in 40 steps; equal weights: cross entropy, mean"
    )


def test_a_structural_error_means_a_wrong_gradient() -> None:
    result = evaluation("broken", finding("ddp.never_synced", "error"), finding("x.y", "warning"))
    assert headline.verdict_meaning(result, 8, 2) == (
        "the applied gradient is not the one the loop intends "
        "(1 error, 1 warning in 8 steps on 2 ranks)"
    )


@pytest.mark.parametrize("rule", ["scaler.collapse", "scaler.missing_update"])
def test_another_error_does_not(rule: str) -> None:
    result = evaluation("broken", finding(rule, "error"))
    assert headline.verdict_meaning(result, 8, 1) == "1 error in 8 steps"


def test_a_symptom_is_not_counted() -> None:
    symptom = finding("norm.spike", "error", "ddp.never_synced")
    result = evaluation("suspect", finding("norm.vanishing", "warning"), symptom)
    assert headline.verdict_meaning(result, 8, 1) == "1 warning in 8 steps"


def test_acknowledged_findings_are_counted() -> None:
    known = replace(finding("x.err", "error"), acknowledged=Acknowledgement("known", None, 1.0))
    result = evaluation("broken", known, finding("x.warn", "warning"), finding("x.note", "info"))
    summary = headline.summarize(result, 8)
    assert summary.detail == "2 more findings below. Acknowledged: 1 of 2 findings."


def test_a_verdict_names_the_ranks_over_which_it_holds() -> None:
    result = evaluation("broken", finding("x.err", "error"))
    summary = headline.summarize(result, 8, 4, absent={3: 0})
    assert summary.detail == "This holds for ranks 0, 1 and 2: rank 3 never sent a record."
    assert headline.verdict_meaning(result, 8, 4, absent={3: 0}) == (
        "1 error in 8 steps on 4 ranks; this holds for ranks 0, 1 and 2: rank 3 never sent a record"
    )
    many = headline.summarize(
        evaluation("incomplete"), 8, 1_024, absent=dict.fromkeys(range(1, 1_024), 0)
    )
    assert many.detail == (
        "This holds for rank 0: ranks 1, 2, 3, 4, 5, 6, 7, 8 and 1015 more never sent a record."
    )
    behind = headline.summarize(evaluation("balanced"), 40, 4, {2: 9, 3: 12})
    assert behind.detail == (
        "After step 9, this holds for ranks 0 and 1: ranks 2 and 3 sent no record of the last step."
    )
    both = headline.summarize(evaluation("balanced"), 40, 4, {3: 0, 2: 12})
    assert both.detail == (
        "This holds for ranks 0 and 1: "
        "rank 3 never sent a record, and rank 2 sent no record of the last step."
    )
    not_known = headline.summarize(evaluation("balanced"), 40, 4, {2: None, 3: 12})
    assert not_known.detail == (
        "This holds for ranks 0 and 1: ranks 2 and 3 sent no record of the last step."
    )


def test_coverage_keeps_the_whole_reason() -> None:
    lines = headline.coverage(evaluation("balanced"))
    assert lines[1] == headline.Coverage("c.d", "not_applicable", "no GradScaler: none")
    assert headline.tally(lines) == {"ok": 1, "not_applicable": 1}


def test_rules_that_were_not_measured_for_one_reason_are_one_line() -> None:
    lines = [headline.Coverage(rule, "not_measured", reason) for rule, reason in ("ax", "by", "cy")]
    lines.append(headline.Coverage("d", "ok", ""))
    assert headline.not_measured_by_reason(lines) == [("y", ["b", "c"]), ("x", ["a"])]
