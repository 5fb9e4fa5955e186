"""The outputs of a check for CI: JUnit XML, SARIF, GitHub annotations, baselines."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from xml.etree import ElementTree as xml

import pytest
from pydantic import BaseModel
from sarif_pydantic import Sarif

from gradledger_monitor.gate.github import workflow_commands
from gradledger_monitor.gate.junit import junit
from gradledger_monitor.gate.result import CheckedRun, Gate, read_baseline
from gradledger_monitor.gate.sarif import sarif
from gradledger_monitor.model.findings import Acknowledgement, EvaluationResult, Finding
from gradledger_monitor.reports.verdict_json import verdict_json

UNEQUAL = Finding(
    rule="reduction.token_weights_unequal",
    optimizer=0,
    severity="error",
    first_step=1,
    last_step=6,
    steps=6,
    title="Weights differ, 50%: a\x1b[31mb",
    summary="Line one\nline two, <b>100%</b>",
    fix="loss = ...",
    evidence={"misallocation": 0.25, "norm": float("nan")},
)
CLIP = replace(UNEQUAL, rule="clip.always_engaged", severity="info", title="Clips")
SPIKE = replace(UNEQUAL, rule="norm.spike", severity="warning", inhibited_by=UNEQUAL.rule)
COVERAGE = {
    UNEQUAL.rule: "finding",
    CLIP.rule: "finding",
    SPIKE.rule: "finding",
    "ddp.never_synced": "not_applicable: one rank",
    "loop.double_step": "ok",
}


def checked(*findings: Finding) -> list[CheckedRun]:
    """One training with these findings."""
    return [CheckedRun("train", 6, 1, EvaluationResult("broken", list(findings), [], COVERAGE))]


def test_only_a_grave_new_cause_fails() -> None:
    gate = Gate("warning")
    acknowledged = replace(UNEQUAL, acknowledged=Acknowledgement("fine", None, 1.0))
    assert [gate.excuse(f) for f in (UNEQUAL, CLIP, SPIKE, acknowledged)] == [
        None,
        "below warning",
        "a symptom of reduction.token_weights_unequal",
        "acknowledged: fine",
    ]


def test_a_symptom_over_time_that_is_resolved_does_not_fail_and_a_mistake_does() -> None:
    gate = Gate("warning")
    resolved = replace(SPIKE, inhibited_by=None, lifecycle="resolved")
    assert gate.excuse(resolved) == "resolved: not after step 6"
    assert gate.fails(replace(resolved, lifecycle="ongoing"))
    assert gate.fails(replace(UNEQUAL, lifecycle="resolved"))


def test_a_baseline_excuses_what_was_there_and_not_what_is_worse() -> None:
    before = [replace(UNEQUAL, severity="warning"), replace(UNEQUAL, optimizer=1, severity="info")]
    evaluation = EvaluationResult("suspect", before, [], COVERAGE)
    text = json.dumps(verdict_json("train", 6, 1, evaluation))
    gate = Gate("info", read_baseline(text))
    assert gate.excuse(replace(UNEQUAL, severity="warning")) == "in the baseline"
    assert gate.fails(UNEQUAL)
    assert gate.fails(CLIP)


@pytest.mark.parametrize("text", ["[]", '{"findings": [{}]}', '{"findings": 3}'])
def test_another_file_is_no_baseline(text: str) -> None:
    with pytest.raises(ValueError, match="not a verdict"):
        read_baseline(text)


def test_junit_has_a_test_for_each_rule() -> None:
    suites = xml.fromstring(junit(checked(UNEQUAL, CLIP, SPIKE), Gate()))
    (suite,) = suites
    assert {n: suite.get(n) for n in ("tests", "failures", "skipped")} == {
        "tests": "5",
        "failures": "1",
        "skipped": "1",
    }
    cases = {case.get("name"): case for case in suite}
    failure = cases[UNEQUAL.rule].find("failure")
    assert failure is not None and "\\x1b[31m" in str(failure.get("message"))
    assert "loss = ..." in str(failure.text)
    skipped = cases["ddp.never_synced"].find("skipped")
    assert skipped is not None and skipped.get("message") == "one rank"
    assert cases["loop.double_step"].find("*") is None
    assert cases[CLIP.rule].find("failure") is None


def test_sarif_has_rule_location_and_suppressions() -> None:
    document = json.loads(sarif(checked(UNEQUAL, CLIP, SPIKE), Gate(), "src/train.py"))
    assert document["version"] == "2.1.0"
    (run,) = document["runs"]
    unequal, clip = run["results"]
    assert (unequal["level"], clip["level"]) == ("error", "note")
    rules = run["tool"]["driver"]["rules"]
    assert rules[unequal["ruleIndex"]]["id"] == unequal["ruleId"] == UNEQUAL.rule
    location = unequal["locations"][0]["physicalLocation"]
    assert location["artifactLocation"]["uri"] == "src/train.py"
    assert "suppressions" not in unequal
    assert clip["suppressions"][0]["justification"] == "below warning"
    assert unequal["properties"]["evidence"]["norm"] == "NaN"
    assert unequal["partialFingerprints"] != clip["partialFingerprints"]


def test_sarif_has_no_properties_outside_the_standard() -> None:
    model = Sarif.model_validate_json(sarif(checked(UNEQUAL, CLIP, SPIKE), Gate(), "src/train.py"))
    # both are in the standard (3.14.27 and 3.27.23), but not in the package's models
    assert set(unknown(model)) == {"runs.columnKind", "runs.results.suppressions"}


def unknown(model: BaseModel, prefix: str = "") -> Iterator[str]:
    """Properties that the models of SARIF 2.1.0 lack."""
    yield from (prefix + name for name in model.model_extra or {})
    for name, field in type(model).model_fields.items():
        value = getattr(model, name)
        for part in value if isinstance(value, list) else [value]:
            if isinstance(part, BaseModel):
                yield from unknown(part, f"{prefix}{field.alias or name}.")


def test_an_annotation_is_one_line() -> None:
    (line, remark) = workflow_commands(checked(UNEQUAL, CLIP), Gate(), "src/train.py")
    assert line.startswith(
        "::error file=src/train.py,title=reduction.token_weights_unequal%3A Weights differ%2C 50%25"
    )
    assert line.endswith("::Line one%0Aline two, <b>100%25</b>%0A%0AGeneric fix:%0Aloss = ...")
    assert remark.startswith("::notice ")
    assert "\n" not in line
