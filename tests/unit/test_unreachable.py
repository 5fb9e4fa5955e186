"""Commands in which the hooks cannot start, detected from their command lines."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from gradledger import autostart
from gradledger.autostart.unreachable import WORKAROUND, reason

REACHED = [
    "python train.py -I -E",
    "python -m package -I",
    "python -c pass -I",
    "python -Wignore -X dev -s -B -u -P train.py",
    "python -W E -X I train.py",
    "python --check-hash-based-pycs always train.py",
    "python3.12 -- train.py",
    "torchrun --nproc_per_node 2 train.py -E",
    "bash -E job.sh",
    "env LR=1 -u OTHER -C /tmp python train.py",
    f"env PYTHONPATH={autostart.PATH}:/mine python train.py",
    "srun --export=ALL python train.py",
    "true",
]
NOT_REACHED = {
    "python -I train.py": "python -I ignores PYTHONPATH",
    "python3.12 -uE -m package": "python -E ignores PYTHONPATH",
    "/opt/bin/python3 -Wignore -X dev -sI train.py": "python -I ignores PYTHONPATH",
    "python -W ignore -Sc pass": "python -S imports no sitecustomize",
    "pypy3 -I train.py": "python -I ignores PYTHONPATH",
    "env -i python train.py": "env drops PYTHONPATH",
    "env -u PYTHONPATH python train.py": "env drops PYTHONPATH",
    "env PYTHONPATH=/mine python train.py": "env drops PYTHONPATH",
    "env LR=1 python -I train.py": "python -I ignores PYTHONPATH",
    "sudo python train.py": "sudo does not pass PYTHONPATH on",
    "ssh host python train.py": "ssh does not pass PYTHONPATH on",
    "docker run image python train.py": "docker does not pass PYTHONPATH on",
    "srun -n 2 --export=NONE python train.py": "--export=NONE drops PYTHONPATH",
}


@pytest.mark.parametrize("command", REACHED)
def test_a_command_with_the_hooks_has_no_reason(command: str) -> None:
    assert reason(command.split()) is None


@pytest.mark.parametrize("command", NOT_REACHED)
def test_a_command_without_the_hooks_has_a_reason_and_a_workaround(command: str) -> None:
    why = reason(command.split())
    assert why is not None and why.startswith(NOT_REACHED[command]) and why.endswith(WORKAROUND)


@pytest.mark.parametrize("line", ["#!{python} -sI", "#!/usr/bin/env -S python3 -E"])
def test_switches_in_the_first_line_of_a_script_count(line: str, tmp_path: Path) -> None:
    script = tmp_path / "job"
    script.write_text(line.format(python=sys.executable) + "\nprint()\n")
    script.chmod(0o755)
    why = reason([str(script)])
    assert why is not None and "ignores PYTHONPATH" in why


def test_no_command_has_no_reason() -> None:
    assert reason([]) is None
