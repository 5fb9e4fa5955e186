"""The report in a terminal: every number of a finding, and no markup in untrusted text."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

import pytest

from gradledger_monitor.model.findings import EvaluationResult, Finding, TreeNode
from gradledger_monitor.reports import terminal
from gradledger_monitor.reports.objectives import ObjectiveSummary
from gradledger_web.formatting import NOT_MEASURED

FINDING = Finding(
    rule="reduction.token_weights_unequal",
    optimizer=0,
    severity="error",
    first_step=1,
    last_step=12,
    steps=12,
    title="Token weights differ",
    summary="A fifth of the weight [bold]sits[/bold] wrong.",
    fix="loss = loss.sum() / tokens\nloss.backward()",
    evidence={"misallocation": 0.2345678, "differ": "between ranks", "tokens": [1, 2]},
)
NODE = TreeNode("reduction", "Is the contract balanced?", "not_measured", "no loss was seen")


def text(*more: Finding, **changes: Any) -> str:
    """The report of one finding, and of ``more``, as it is written to a file."""
    stream = io.StringIO()
    evaluation = EvaluationResult("broken", [replace(FINDING, **changes), *more], [NODE], {})
    terminal.console(stream).print(terminal.report("mine", 12, 2, evaluation), crop=False)
    return stream.getvalue()


def test_it_has_verdict_steps_evidence_and_fix() -> None:
    report = text()
    assert "BROKEN: the applied gradient is not the one the loop intends" in report
    assert "(1 error in 12 steps on 2 ranks)" in " ".join(report.split())
    assert "reduction.token_weights_unequal, steps 1 to 12" in report
    assert "misallocation d 23.5%, weights differ between ranks" in report
    assert "  loss = loss.sum() / tokens" in report
    assert "  loss.backward()" in report


def test_the_diff_of_a_fix_is_not_wrapped() -> None:
    long = "    clip_grad_norm_(self.model.parameters(), self.config.grad_norm_clip)".rjust(140)
    fix = f"--- a/train.py\n+++ b/train.py\n@@ -7 +7,2 @@\n+    scaler.unscale_(optimizer)\n {long}"
    lines = text(fix=fix).splitlines()
    start = lines.index("  --- a/train.py")
    assert lines[start : start + 5] == [f"  {line}" for line in fix.splitlines()]


def test_an_answer_states_what_is_resolved() -> None:
    stream, past = io.StringIO(), "resolved after step 40: The training loss diverges"
    node = TreeNode("loss", "Does the loss look normal?", "ok", "reported loss", past)
    result = EvaluationResult("balanced", [], [node], {})
    terminal.console(stream).print(terminal.report("mine", 90, 1, result))
    assert f"Does the loss look normal? ({past})" in stream.getvalue()


def test_summaries_are_not_markup() -> None:
    assert "[bold]sits[/bold]" in text()


OBJECTIVE = ObjectiveSummary(
    optimizer=0,
    name="cross entropy",
    unit="tokens",
    first_step=1,
    last_step=12,
    steps=12,
    count=223.0,
    balance=1.0,
    misallocation=0.0,
    misallocation_peak=0.0,
    coefficient=None,
    share=0.9,
    status="ok",
    text="balanced",
)


def test_several_objectives_are_side_by_side() -> None:
    router = replace(
        OBJECTIVE, name="mean [b]", unit=None, balance=None, status="finding", text="K = 4"
    )

    def lines(*objectives: ObjectiveSummary) -> list[str]:
        stream = io.StringIO()
        evaluation = EvaluationResult("suspect", [], [NODE], {})
        report = terminal.report("mine", 12, 1, evaluation, objectives=objectives)
        terminal.console(stream).print(report)
        return [" ".join(line.split()) for line in stream.getvalue().splitlines()]

    several = lines(OBJECTIVE, router)
    assert "Objective Per step Balance Verdict" in several
    assert "cross entropy 223 tokens 1 balanced" in several
    assert f"mean [b] {NOT_MEASURED} {NOT_MEASURED} K = 4" in several
    assert not any("Objective" in line for line in lines(OBJECTIVE))
    times_128 = replace(OBJECTIVE, balance=128.0, text="equal weights; B is its coefficient")
    assert "cross entropy 223 tokens 128 equal weights; B is its coefficient" in lines(times_128)


class Terminal(io.StringIO):
    """A stream that is a terminal."""

    def isatty(self) -> bool:
        return True


def test_a_file_gets_no_colours_and_no_spaces_at_the_ends_of_lines() -> None:
    report = text()
    assert "\x1b[" not in report
    assert [line for line in report.splitlines() if line != line.rstrip()] == []


def test_a_terminal_gets_colours_but_none_with_no_color(monkeypatch: pytest.MonkeyPatch) -> None:
    def written() -> str:
        stream = Terminal()
        result = EvaluationResult("broken", [FINDING], [NODE], {})
        terminal.console(stream).print(terminal.report("mine", 12, 2, result))
        return stream.getvalue()

    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[" in written()
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[" not in written()


def test_gaps_between_steps_are_not_hidden() -> None:
    assert "3 of steps 1 to 12" in text(steps=3)
    assert "step 4" in text(first_step=4, last_step=4, steps=1)


def test_one_text_of_several_optimizers_is_shown_once() -> None:
    report = text(replace(FINDING, optimizer=2), replace(FINDING, optimizer=3, title="Another"))
    assert report.count("Token weights differ") == 1
    assert "steps 1 to 12, optimizers 0, 2" in report
    assert "steps 1 to 12, optimizer 3" in report
    assert "optimizer" not in text()
    many = text(*(replace(FINDING, optimizer=number) for number in range(1, 20)))
    assert "optimizers 0, 1, 2, 3, 4, 5, 6, 7, ..." in many


def test_what_is_resolved_is_named_beside_a_verdict_of_no_problems() -> None:
    spike = replace(FINDING, rule="norm.spike", severity="warning", lifecycle="resolved")
    stream = io.StringIO()
    evaluation = EvaluationResult("balanced", [spike], [], {})
    terminal.console(stream).print(terminal.report("mine", 40, 1, evaluation))
    assert "BALANCED: no problems at the end of 40 steps, 1 warning before" in stream.getvalue()
    assert "norm.spike, steps 1 to 12, resolved" in stream.getvalue()


def test_a_symptom_names_its_cause() -> None:
    assert "a symptom of ddp.never_synced" in text(inhibited_by="ddp.never_synced")


def test_a_question_that_was_not_measured_has_the_reason() -> None:
    assert "Is the contract balanced? (no loss was seen)" in text()


def test_no_text_of_a_run_moves_the_cursor() -> None:
    hostile = "x\x1b[2J\r\x9b31m"
    report = text(title=hostile, summary=hostile, evidence={hostile: hostile})
    assert "\x1b" not in report and "\x9b" not in report and "\r" not in report
    assert "x\\x1b[2J\\r" in report


def test_a_question_of_the_tree_that_wraps_stays_in_its_column(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("NO_COLOR", "1")
    stream = Terminal()
    result = EvaluationResult("incomplete", [], [NODE], {})
    terminal.console(stream).print(terminal.report("mine", 12, 2, result))
    assert stream.getvalue().splitlines()[-3:] == [
        "  not measured   Is the contract",
        "                 balanced? (no loss was",
        "                 seen)",
    ]
