"""Which lines a finding gets, and how they are shown: frames, SARIF, annotations, alerts."""

from __future__ import annotations

import io
import json
from dataclasses import replace

import pytest

from gradledger.capture.code import call_sites
from gradledger_monitor.alerts.markdown import body
from gradledger_monitor.alerts.payload import PageUrls, RunSummary, alert_document
from gradledger_monitor.alerts.planner import AlertItem
from gradledger_monitor.evaluation import finding_code
from gradledger_monitor.evaluation.finding_code import with_code
from gradledger_monitor.gate.github import workflow_commands
from gradledger_monitor.gate.result import CheckedRun, Gate
from gradledger_monitor.gate.sarif import sarif
from gradledger_monitor.model.code.frames import code_frames, frame_text
from gradledger_monitor.model.code.locations import CodeLocation
from gradledger_monitor.model.findings import EvaluationResult, Finding
from gradledger_monitor.reports.terminal import console, report
from gradledger_monitor.rules.docs import rules_by_id
from gradledger_monitor.rules.reduction.fixes import MICRO_BATCH_MEAN, SUM_OVER_WINDOW
from gradledger_web.rendering import environment

SOURCE = (
    "    for x, y in batches:",
    "\tloss = f(x, y)  # <b>",
    "",
    "        loss.backward()",
    "        if last:",
    "            optimizer.step()",
)
BACKWARD = CodeLocation("backward", "src/my train.py", 10, 10, 9, 24, "fit", "", 7, SOURCE)
STEP = CodeLocation("step", "src/my train.py", 12, 12, 13, 29, "fit", "", 9, SOURCE[2:])
LOSS = CodeLocation("loss", "/opt/loss.py", 3)
FINDING = Finding(
    "reduction.missing_division", 0, "warning", 1, 5, 5, "Not divided", "It is not.", "fix", {}
)


def test_locations_in_the_same_lines_are_one_frame() -> None:
    (frame,) = code_frames([STEP, BACKWARD])
    assert frame_text(frame).splitlines() == [
        "  --> src/my train.py:12, in fit",
        "   |",
        " 7 | for x, y in batches:",
        " 8 | loss = f(x, y)  # <b>",
        " 9 |",
        "10 |     loss.backward()",
        "   |     ^^^^^^^^^^^^^^^ backward",
        "11 |     if last:",
        "12 |         optimizer.step()",
        "   |         ^^^^^^^^^^^^^^^^ optimizer step",
    ]


def test_a_call_longer_than_a_line_keeps_its_label() -> None:
    text = f"Trainer({'argument, ' * 20}).train()"
    long = CodeLocation("backward", "train.py", 1, 1, 1, len(text) + 1, "", "", 1, (text,))
    (frame,) = code_frames([long])
    *_, code, marks = frame_text(frame, width=60).splitlines()
    assert (len(code), len(marks)) == (60, 60)
    assert code.endswith("…") and marks.endswith("^ backward")


def test_a_location_without_text_is_one_line() -> None:
    frames = code_frames([replace(LOSS, via="lightning"), BACKWARD])
    assert [frame_text(frame).partition("\n")[0] for frame in frames] == [
        "--> /opt/loss.py:3, called by lightning: loss",
        "  --> src/my train.py:10, in fit",
    ]


def test_a_page_escapes_the_text_and_marks_the_call() -> None:
    module = vars(environment().get_template("code_frame.html").module)
    text = str(module["code_frames"]((BACKWARD,), "0123456789abcdef"))
    assert "<mark>loss.backward()</mark>" in text
    assert "&lt;b&gt;" in text
    assert "0123456789<" in text


def test_a_finding_gets_what_its_rule_is_about_of_its_optimizer() -> None:
    other = replace(FINDING, optimizer=1)
    located = {0: [STEP, LOSS, BACKWARD, replace(BACKWARD, role="loss")]}
    first, second = with_code([FINDING, other], located)
    assert first.code == (BACKWARD, LOSS)
    assert second.code == ()


def test_the_call_that_runs_a_whole_loop_comes_last() -> None:
    """A call of a package that only calls backward is the call of that."""
    train = replace(BACKWARD, via="transformers", line=30)
    inside = replace(LOSS, file=train.file)
    for step, expected in ((replace(train, role="step"), [3, 30]), (STEP, [30, 3])):
        (finding,) = with_code([FINDING], {0: [train, step, inside]})
        assert [each.line for each in finding.code] == expected


def test_a_second_division_is_where_the_script_divides() -> None:
    loss = replace(LOSS, end_line=4, first=2, source=("# a / b", "loss = f(", "  x)", "y = a / b"))
    divided = replace(loss, line=9, end_line=9, first=9, source=("loss = loss / K",))
    twice = replace(FINDING, rule="reduction.double_division")
    (finding,) = with_code([twice], {0: [loss, divided, BACKWARD]})
    assert [each.line for each in finding.code] == [9, 3, 10]


def test_a_call_that_happens_once_has_no_line_later_than_calls_are_located() -> None:
    assert call_sites.FIRST_WINDOWS == finding_code.FIRST_WINDOWS
    zeroed = replace(FINDING, rule="loop.zeroed_before_step")
    usual = {0: [replace(STEP, role="zero_grad", line=8), STEP]}
    (early,) = with_code([replace(zeroed, first_step=4)], usual)
    (late,) = with_code([replace(zeroed, first_step=5)], usual)
    assert [each.role for each in early.code] == ["zero_grad", "step"]
    assert [each.role for each in late.code] == ["step"]


def test_the_unscaled_backward_comes_before_the_scaled_one() -> None:
    scaled = replace(BACKWARD, role="scaled_backward", line=4)
    finding = replace(FINDING, rule="scaler.unscaled_backward")
    assert with_code([finding], {0: [scaled, BACKWARD]})[0].code == (BACKWARD, scaled)


def test_every_rule_but_that_on_evaluations_points_at_code() -> None:
    without = [name for name, rule in rules_by_id().items() if not rule.points_at]
    assert without == ["eval.diverging"]


def test_sarif_has_the_region_of_the_call() -> None:
    located = replace(FINDING, code=(LOSS, BACKWARD, STEP))
    result = json.loads(sarif(_runs(located), Gate(), "train.py"))["runs"][0]["results"][0]
    assert result["locations"] == [
        {
            "physicalLocation": {
                "artifactLocation": {"uri": "src/my%20train.py"},
                "region": {"startLine": 10, "startColumn": 9, "endLine": 10, "endColumn": 24},
            }
        }
    ]
    (related,) = result["relatedLocations"]
    assert related["message"] == {"text": "optimizer step"}
    assert related["physicalLocation"]["region"]["startLine"] == 12


def test_an_annotation_is_at_the_call() -> None:
    (line,) = workflow_commands(_runs(replace(FINDING, code=(BACKWARD,))), Gate(), "train.py")
    assert line.startswith("::warning file=src/my train.py,line=10,endLine=10,title=")


def test_the_terminal_has_the_position_and_the_frame() -> None:
    result = EvaluationResult("suspect", [replace(FINDING, code=(BACKWARD,))], [], {})
    stream = io.StringIO()
    console(stream).print(report("train", 5, 1, result, revision="commit 1a2b"))
    assert "--> src/my train.py:10, in fit" in stream.getvalue()
    assert "loss.backward()" in stream.getvalue()
    assert "commit 1a2b" in stream.getvalue()


def test_a_message_has_positions_and_no_source_text() -> None:
    located = replace(FINDING, code=(BACKWARD, STEP))
    run = RunSummary("r", "run", "default", "suspect", 5, 1)
    urls = PageUrls("http://host", lambda rule: None)
    document = alert_document(run, (AlertItem("new", located),), {}, urls, 1.0)
    assert "loss.backward()" not in json.dumps(document)
    assert "`src/my train.py:10` (backward)\n" in body(document)


def _runs(finding: Finding) -> list[CheckedRun]:
    return [CheckedRun("train", 5, 1, EvaluationResult("suspect", [finding], [], {}))]


@pytest.mark.parametrize(
    "line",
    [
        "loss.backward(retain_graph=True)",
        "scaler.scale(a + b).backward()",
        "if ready: loss.backward()",
        "losses[0].backward()",
        'loss.backward()  # "***"',
    ],
)
def test_a_line_of_another_form_keeps_the_generic_fix(line: str) -> None:
    location = replace(BACKWARD, line=1, end_line=1, first=1, source=(line,))
    finding = replace(FINDING, fix=MICRO_BATCH_MEAN["plain"], evidence={"micro_batches": 4})
    assert with_code([finding], {0: [location]})[0].fix == finding.fix
    plain = replace(location, source=("  loss.backward()  # now",))
    assert with_code([finding], {0: [plain]})[0].fix.endswith("+  (loss / 4).backward()  # now")
    assert with_code([finding], {0: [plain, replace(plain, line=2)]})[0].fix == finding.fix


@pytest.mark.parametrize("fix", [MICRO_BATCH_MEAN["plain"], SUM_OVER_WINDOW])
def test_a_fix_of_code_names_the_library_that_calls_backward(fix: str) -> None:
    """And one in words does not, even if they mention ``accelerator.backward()``."""
    of_library = replace(BACKWARD, via="fastai")
    finding = replace(FINDING, fix=fix)
    (shown,) = with_code([finding], {0: [of_library]})
    assert shown.fix.startswith(fix)
    assert ("# fastai calls backward" in shown.fix) == (fix != SUM_OVER_WINDOW)
