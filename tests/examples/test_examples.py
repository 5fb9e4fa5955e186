"""Every example does what it says: its commands run as they stand in it, and end as they should.

Those whose packages are not installed are left out here; `make examples` has an environment for
each. A command `python` is a fork, and so are the ranks that `torchrun` starts.
"""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from helpers import forkserver

FOLDER = Path(__file__).parents[2] / "examples"
FRAMEWORKS = {"transformers", "accelerate", "lightning"}
WRONG = "--mean-of-means"


def docstring(path: Path) -> str:
    """What the file says of itself."""
    return ast.get_docstring(ast.parse(path.read_text()), clean=False) or ""


def commands() -> list[tuple[str, str]]:
    """Each file with each command that its docstring shows."""
    return [
        (path.name, command)
        for path in sorted(FOLDER.glob("*.py"))
        for command in re.findall(r"^ *(gradledger .+?)(?: +#.*)?$", docstring(path), re.M)
    ]


def missing(path: Path) -> set[str]:
    """The frameworks that the file imports and this environment does not have."""
    wanted = set(re.findall(r"^(?:from|import) (\w+)", path.read_text(), re.M)) & FRAMEWORKS
    return {name for name in wanted if find_spec(name) is None}


def run(words: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """A command as a person types it where the examples are, with nobody's home."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith("GRADLEDGER_")}
    python = forkserver.executable(folder)
    path = os.pathsep.join([str(folder), str(Path(sys.executable).parent), os.environ["PATH"]])
    env = {**clean, "HOME": str(folder), "PATH": path, "OMP_NUM_THREADS": "1"}
    env["PYTHON_EXEC"] = str(python)
    return subprocess.run(words, env=env, cwd=folder, capture_output=True, text=True, timeout=900)


def judged(command: str, folder: Path) -> tuple[int, dict[str, Any], str]:
    """The exit status, the verdict and stderr of one ``gradledger check``."""
    (folder / "examples").symlink_to(FOLDER)
    verdict = folder / "verdict.json"
    before, after = command.split(" -- ", 1)
    done = run([*before.split(), "--json", str(verdict), "--", *shlex.split(after)], folder)
    assert verdict.exists(), done.stderr
    return done.returncode, json.loads(verdict.read_text()), done.stderr


def test_every_example_shows_its_command() -> None:
    assert {name for name, _ in commands()} == {path.name for path in FOLDER.glob("*.py")}


@pytest.mark.parametrize(("name", "command"), commands())
def test_an_example_ends_as_it_says(name: str, command: str, tmp_path: Path) -> None:
    if lacking := missing(FOLDER / name):
        pytest.skip(f"needs {', '.join(sorted(lacking))}")
    status, verdict, said = judged(command, tmp_path)
    found = [finding["rule"] for finding in verdict["findings"]]
    wrong = WRONG in command
    assert found == (["reduction.token_weights_unequal"] if wrong else []), said
    assert (status, verdict["verdict"]) == ((1, "broken") if wrong else (0, "balanced")), said
    assert verdict["steps"] == 10, said
    two = "nproc_per_node=2" in command
    assert verdict["ranks"] == (2 if two else 1)
    assert (verdict["coverage"]["ddp.never_synced"] == "ok") is two, "the ranks train each alone"


def test_the_gate_lets_a_right_loop_pass_and_stops_a_wrong_one(tmp_path: Path) -> None:
    gate = str(FOLDER / "ci_gate.sh")
    passed, stopped = (run([gate, *more], tmp_path) for more in ([], [WRONG]))
    assert passed.returncode == 0, passed.stderr
    assert stopped.returncode == 1, stopped.stderr
    assert "reduction.token_weights_unequal" in stopped.stderr
