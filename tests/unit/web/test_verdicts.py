"""What a judgement says in one sentence."""

from __future__ import annotations

from gradledger_monitor.model.findings import EvaluationResult, Finding, Severity, TreeNode, Verdict
from gradledger_web import headline


def found(rule: str, severity: Severity, inhibited_by: str | None = None) -> Finding:
    title = f"{rule} happened"
    return Finding(
        rule, 0, severity, 1, 2, 2, title, "", "", evidence={}, inhibited_by=inhibited_by
    )


def judged(
    verdict: Verdict, *findings: Finding, tree: tuple[TreeNode, ...] = ()
) -> EvaluationResult:
    coverage = {"a.b": "ok", "c.d": "not_applicable: no GradScaler: none"}
    return EvaluationResult(verdict, list(findings), list(tree), coverage)


def test_the_worst_cause_speaks_and_symptoms_stand_apart() -> None:
    evaluation = judged(
        "broken",
        found("x.warn", "warning"),
        found("x.sym", "error", "x.err"),
        found("x.err", "error"),
    )
    reading = headline.summarize(evaluation, 5)
    assert reading.sentence == "x.err happened."
    assert reading.detail == "1 more finding below."
    assert [finding.rule for finding in reading.symptoms] == ["x.sym"]


def test_incomplete_says_what_was_not_seen() -> None:
    tree = (TreeNode("reduction", "?", "not_measured", "compiled"), TreeNode("loop", "?", "ok"))
    reading = headline.summarize(judged("incomplete", tree=tree), 5)
    assert "not everything could be seen" in reading.sentence
    assert reading.detail == "Not measured: reduction."


def test_balanced_never_speaks_before_a_step_was_judged() -> None:
    assert "No optimizer step" in headline.summarize(judged("incomplete"), 0).sentence
    assert "No fault in 1 optimizer step," in headline.summarize(judged("balanced"), 1).sentence


def test_coverage_keeps_the_whole_reason() -> None:
    lines = headline.coverage(judged("balanced"))
    assert lines[1] == headline.Coverage("c.d", "not_applicable", "no GradScaler: none")
    assert headline.tally(lines) == {"ok": 1, "not_applicable": 1}
