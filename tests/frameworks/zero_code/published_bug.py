"""The accumulation bug that transformers fixed in 4.46, found with no change to any script.

Not collected by `pytest` alone, since it needs two environments: `make zero-code` builds them and
runs this. Neither has gradledger installed.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from frameworks.zero_code.checking import check, python_of

UNEQUAL = "reduction.token_weights_unequal"


@pytest.mark.parametrize("environment", ["transformers-4.45", "transformers-5"])
def test_the_training_environment_knows_nothing_of_gradledger(environment: str) -> None:
    script = "import importlib.util as u; print(u.find_spec('gradledger'))"
    versions = subprocess.run(
        [python_of(environment), "-c", script], capture_output=True, text=True, check=True, cwd="/"
    )
    assert versions.stdout.strip() == "None"


def test_the_old_trainer_averages_micro_batch_means(tmp_path: Path) -> None:
    status, report = check("transformers-4.45", ["train.py"], tmp_path / "check.json")
    assert status == 1
    assert report["verdict"] == "broken"
    assert [f["rule"] for f in report["findings"]] == [UNEQUAL]
    assert report["findings"][0]["evidence"]["misallocation"] > 0.05
    assert report["findings"][0]["first_step"] == 1
    assert report["steps"] == 10


def test_the_current_trainer_is_balanced(tmp_path: Path) -> None:
    status, report = check("transformers-5", ["train.py"], tmp_path / "check.json")
    assert (status, report["verdict"], report["findings"]) == (0, "balanced", [])
    assert report["coverage"][UNEQUAL] == "ok: equal weights: cross entropy"
    assert report["steps"] == 10
