"""What a training under ``gradledger run`` writes to the terminal."""

from __future__ import annotations

import pytest

from gradledger import stderr
from gradledger.delivery import run_report
from gradledger.delivery.run_report import RunState
from gradledger.on_finding import FindingHandler, Policy, ReportedFinding

URL = "http://127.0.0.1:4777/runs/a"
PENDING = RunState("incomplete", 0, revision=3, evaluated_revision=2, ended=True)
EVALUATED = RunState("broken", 40, revision=5, evaluated_revision=4, ended=True)


def finding(number: int = 0) -> ReportedFinding:
    return ReportedFinding(
        rule=f"loop.rule_{number}",
        severity="error",
        title="A title\x1b[2J\nin two lines",
        summary="word " * 200,
        fix="",
        optimizer=0,
        since_step=7,
        url=URL,
    )


def test_a_finding_has_three_lines_without_control_characters() -> None:
    lines = run_report.finding_lines(finding())
    assert len(lines) == 3 and all(line.isprintable() for line in lines)
    assert max(map(len, lines)) <= run_report.MAX_TEXT and lines[1].endswith("word...")


def test_a_ledger_shows_the_verdict_and_the_steps_that_it_is_about() -> None:
    handler = FindingHandler(Policy("warn"), run_url=lambda: URL, prints=lambda: False)
    assert handler.verdict == ""
    handler.on_reply(PENDING)
    assert handler.verdict == ""  # no step is evaluated
    handler.on_reply(EVALUATED._replace(ended=False))
    assert handler.verdict == "broken after 40 evaluated steps so far"
    handler.on_reply(None)  # a reply without the state of the run
    assert handler.verdict == "broken after 40 evaluated steps so far"


def test_the_end_has_the_verdict_the_findings_and_the_address() -> None:
    lines = run_report.end_lines(EVALUATED, [finding(), finding(1)], URL)
    assert lines[0] == "BROKEN after 40 evaluated steps: 2 findings"
    assert "loop.rule_0" in lines[1] and "loop.rule_1" in lines[2] and lines[3] == URL


def test_a_run_whose_other_ranks_go_on_has_a_verdict_so_far() -> None:
    state = EVALUATED._replace(verdict="balanced", steps=1, ended=False)
    lines = run_report.end_lines(state, [], URL)
    assert lines == ["BALANCED after 1 evaluated step so far: no findings", URL]


def test_many_findings_are_counted_and_the_first_are_listed() -> None:
    lines = run_report.end_lines(EVALUATED, [finding(n) for n in range(9)], URL)
    assert len(lines) == 2 + run_report.MAX_FINDINGS and "9 findings" in lines[0]


def test_the_verdict_includes_all_records_or_is_not_written() -> None:
    answers = iter([PENDING, EVALUATED])
    assert run_report.final_state(PENDING, lambda: next(answers)) == EVALUATED
    assert run_report.final_state(EVALUATED._replace(revision=4), lambda: None) is not None
    assert run_report.final_state(PENDING, lambda: None) is None
    assert run_report.end_lines(None, [], URL) == [f"the verdict is not computed yet: {URL}"]


def test_a_verdict_that_takes_too_long_is_not_awaited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_report, "END_SECONDS", 0.0)
    assert run_report.final_state(PENDING, lambda: PENDING) is None


@pytest.mark.parametrize(("summary", "prints"), [(False, True), (True, False)])
def test_only_rank_0_of_a_command_that_wants_it_writes(
    summary: bool, prints: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    handler = FindingHandler(Policy(), lambda: URL, lambda: prints, summary)
    handler.on_reply(EVALUATED)
    handler.report_end(lambda: EVALUATED)
    assert capfd.readouterr().err == ""


def test_the_address_is_written_once(capfd: pytest.CaptureFixture[str]) -> None:
    handler = FindingHandler(Policy(), lambda: URL, lambda: True, summary=True)
    for state in (None, PENDING, EVALUATED):
        handler.on_reply(state)
    assert capfd.readouterr().err == f"gradledger: recording to {URL}\n"


def test_a_finding_that_a_later_reply_lacks_is_written_as_no_longer_active(
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Otherwise an error in the output and ``BALANCED: no findings`` at the end disagree."""
    handler = FindingHandler(Policy(), lambda: URL, lambda: True)
    notices = [finding(number)._asdict() for number in range(21)]
    handler.on_findings(notices[:2])
    handler.on_findings([*notices[:1], *notices[2:]])  # at the limit, the second one may be cut
    assert "no longer active" not in capfd.readouterr().err
    for _ in "again":
        handler.on_findings(notices[:1])
    lines = capfd.readouterr().err.splitlines()
    rules = {f"(loop.rule_{number})" for number in range(1, 21)}
    assert {line.rpartition(" ")[2] for line in lines} == rules and len(lines) == len(rules)
    assert all(line.startswith("gradledger: no longer active: A title") for line in lines)


@pytest.mark.parametrize(
    ("variable", "value", "has_colour"),
    [("TERM", "xterm", True), ("TERM", "dumb", False), ("NO_COLOR", "1", False)],
)
def test_colours_are_for_terminals(
    variable: str, value: str, has_colour: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv(variable, value)
    monkeypatch.setattr("sys.stderr.isatty", lambda: False)
    assert stderr.coloured("BROKEN", "31") == "BROKEN"
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    assert ("\x1b" in stderr.coloured("BROKEN", "31")) == has_colour
