"""What the README shows of the Trainer under ``gradledger check`` is what the terminal shows."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from frameworks.zero_code.checking import HERE, ONE_THREAD
from helpers.transcript import looks_like

README = HERE.parents[2] / "README.md"
SHOWN = re.compile(r"^    \$ gradledger check -- \S+/python (\S+) (\w+)\n((?:    .*\n|\n)+)", re.M)


def test_the_finding_in_the_readme_is_that_of_the_trainer(tmp_path: Path) -> None:
    example = SHOWN.search(README.read_text())
    assert example, "the README shows no finding of a Trainer"
    script, head, shown = example.groups()
    gradledger = str(Path(sys.executable).parent / "gradledger")
    command = [sys.executable, str(README.parent / script), head]
    done = subprocess.run(
        [gradledger, "check", "--", *command], cwd=tmp_path, env=ONE_THREAD, timeout=300,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    assert done.returncode == 1
    assert looks_like(shown, done.stdout), done.stdout
