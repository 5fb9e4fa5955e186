"""The jobs that docs/ci.md shows are jobs: held against GitHub's and GitLab's own schemas."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[3] / "docs" / "ci.md").read_text()
JOBS = re.findall(r"^```yaml\n(.*?)^```", PAGE, re.M | re.S)


@pytest.mark.parametrize(
    ("job", "schema"),
    list(zip(JOBS, ("vendor.github-workflows", "vendor.gitlab-ci"), strict=True)),
    ids=["GitHub", "GitLab"],
)
def test_a_documented_job_is_one(job: str, schema: str, tmp_path: Path) -> None:
    file = tmp_path / "job.yml"
    file.write_text(job)
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema, str(file)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
