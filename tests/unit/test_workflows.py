"""The workflows of GitHub are valid, run what `.ci/run` runs, and have few rights."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
WORKFLOW = ROOT / ".github" / "workflows" / "ci.yml"
ACTION = ROOT / ".github" / "actions" / "setup" / "action.yml"


def conforms(file: Path, schema: str) -> bool:
    """Whether a file conforms to a schema that check-jsonschema brings along."""
    check = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", f"vendor.{schema}"]
    return subprocess.run([*check, str(file)], capture_output=True).returncode == 0


def jobs() -> dict[str, Any]:
    """The jobs of the workflow."""
    return dict(yaml.safe_load(WORKFLOW.read_text())["jobs"])


def commands() -> list[str]:
    """The commands of all jobs; values of a matrix as commands of their own."""
    steps = [step["run"] for job in jobs().values() for step in job["steps"] if "run" in step]
    matrices = [job.get("strategy", {}).get("matrix", {}) for job in jobs().values()]
    targets = [f"make {target}" for matrix in matrices for target in matrix.get("target", [])]
    return [re.sub(r"\$\{\{.*?\}\}", "", command) for command in steps + targets]


def made() -> set[str]:
    """The targets that the jobs make."""
    words = {word for command in commands() for word in command.removeprefix("make ").split()}
    return {word for word in words - {"make"} if "=" not in word}


def test_the_workflow_and_its_action_are_valid() -> None:
    assert conforms(WORKFLOW, "github-workflows")
    assert conforms(ACTION, "github-actions")


def test_an_invalid_workflow_is_detected(tmp_path: Path) -> None:
    invalid = tmp_path / "ci.yml"
    invalid.write_text(WORKFLOW.read_text().replace("runs-on:", "run-on:", 1))
    assert not conforms(invalid, "github-workflows")


def parts_of_ci(name: str) -> set[str]:
    """The targets of one set of parts."""
    (line,) = re.findall(rf"^{name}=\((.*)\)$", (ROOT / ".ci" / "run").read_text(), re.M)
    return set(re.findall(r"[a-z][a-z0-9-]+", re.sub(r"\S+=\S+", "", line)))


def test_every_part_of_ci_is_a_job() -> None:
    each_change, whole = parts_of_ci("each_change"), parts_of_ci("whole")
    assert len(each_change) > 10
    assert each_change < whole
    assert whole - {"environment", "test"} | {"lint", "type", "unit"} <= made()


def test_jobs_run_targets_of_the_makefile() -> None:
    targets = re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.M)
    assert all(command.startswith("make ") for command in commands())
    assert made() <= set(targets)


@pytest.mark.parametrize("file", [WORKFLOW, ACTION], ids=lambda file: file.name)
def test_every_action_is_pinned_to_a_version(file: Path) -> None:
    actions = re.findall(r"uses: (\S+)", file.read_text())
    pinned = [name for name in actions if re.search(r"@v\d+\.\d+\.\d+$", name)]
    assert pinned
    assert set(actions) - set(pinned) <= {"./.github/actions/setup"}


def test_jobs_may_only_read_and_always_end() -> None:
    assert yaml.safe_load(WORKFLOW.read_text())["permissions"] == {"contents": "read"}
    for name, job in jobs().items():
        assert "permissions" not in job and job["timeout-minutes"] <= 120, name
