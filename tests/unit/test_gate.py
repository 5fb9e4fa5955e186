"""The outputs of a check for CI: JUnit XML, SARIF, GitHub annotations, baselines."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as xml

import pytest
from pydantic import BaseModel
from sarif_pydantic import Sarif

from gradledger_monitor.gate.github import workflow_commands
from gradledger_monitor.gate.junit import junit
from gradledger_monitor.gate.result import CheckedRun, Gate, read_baseline
from gradledger_monitor.gate.sarif import sarif
from gradledger_monitor.gate.version_control import VersionControl, version_control_of
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


VERSION = VersionControl("https://example.org/a/b.git", "0123abc", "main")


def test_sarif_states_the_version_that_was_checked() -> None:
    model = Sarif.model_validate_json(sarif(checked(UNEQUAL), Gate(), "src/train.py", VERSION))
    (details,) = model.runs[0].version_control_provenance or []
    assert (details.revision_id, details.branch) == ("0123abc", "main")
    assert str(details.repository_uri) == VERSION.repository
    assert not set(unknown(model)) - {"runs.columnKind", "runs.results.suppressions"}
    detached = json.loads(sarif(checked(UNEQUAL), Gate(), "a.py", replace(VERSION, branch=None)))
    assert "branch" not in detached["runs"][0]["versionControlProvenance"][0]
    without = json.loads(sarif(checked(UNEQUAL), Gate(), "a.py"))
    assert "versionControlProvenance" not in without["runs"][0]


def git(folder: Path, *words: str) -> str:
    """Run git."""
    who = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=trunk"]
    done = subprocess.run(
        ["git", *who, *words], cwd=folder, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def test_the_version_is_that_of_git_without_credentials(tmp_path: Path) -> None:
    script = tmp_path / "src" / "train.py"
    script.parent.mkdir()
    script.write_text("")
    git(tmp_path, "init")
    assert version_control_of(str(script)) is None  # nothing is committed
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "x")
    head = git(tmp_path, "rev-parse", "HEAD")
    assert version_control_of(str(script)) == VersionControl(tmp_path.as_uri(), head, "trunk")
    for url, uri in REMOTES.items():
        git(tmp_path, "config", "remote.origin.url", url)
        assert version_control_of(str(script)) == VersionControl(uri, head, "trunk")
    git(tmp_path, "checkout", "-b", "fix/a")
    tree = tmp_path / "tree"
    git(tmp_path, "worktree", "add", "--detach", str(tree))
    git(tree, "commit", "--allow-empty", "-m", "y")
    of_tree = version_control_of(str(tree / "src" / "train.py"))
    assert of_tree == VersionControl(uri, git(tree, "rev-parse", "HEAD"), None)
    assert version_control_of(str(script)) == VersionControl(uri, head, "fix/a")


REMOTES = {
    "https://example.org/a/b.git": "https://example.org/a/b.git",
    "https://user:token@example.org/a/b.git": "https://example.org/a/b.git",
    "https://token@example.org:8443/a/b?x=1": "https://example.org:8443/a/b",
    "ssh://git:secret@example.org/a/b.git": "ssh://git@example.org/a/b.git",
    "git@example.org:a/b c.git": "ssh://git@example.org/a/b%20c.git",
}


def test_a_remote_that_is_a_path_is_no_uri(tmp_path: Path) -> None:
    git(tmp_path, "init")
    git(tmp_path, "commit", "--allow-empty", "-m", "x")
    git(tmp_path, "remote", "add", "copy", "../elsewhere")
    version = version_control_of(str(tmp_path))
    assert version is not None and version.repository == tmp_path.as_uri()
    git(tmp_path, "remote", "add", "other", "https://example.org/c.git")
    version = version_control_of(str(tmp_path))
    assert version is not None and version.repository == "https://example.org/c.git"


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
