"""Interpreters started with unusual options and streams: the hooks work and print nothing."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.misbehaving import Server, server, takes
from helpers.patience import HANGS

SCRIPT = """
import torch
import torch.nn.functional as F
torch.set_num_threads(1)
if WATCH:
    import gradledger
    gradledger.watch(config={"lr": 0.1}, name="flags")
model = torch.nn.Linear(4, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    F.cross_entropy(model(torch.ones(2, 4)), torch.tensor([0, 1])).backward()
    optimizer.step()
    optimizer.zero_grad()
"""
STRICT = "-X dev -W error -bb"  # each warning that any of them shows is an error
RUN = ["-m", "gradledger.cli", "run", "--", sys.executable]


def train(
    service: Server, folder: Path, options: str, *, launcher: bool, redirection: str = ""
) -> str:
    """The standard error of a training whose steps the service received."""
    script = folder / "script.py"
    script.write_text(SCRIPT.replace("WATCH", str(not launcher)))
    env = {k: v for k, v in os.environ.items() if not k.startswith("GRADLEDGER_")}
    ours = {"GRADLEDGER_URL": service.url, "GRADLEDGER_SPOOL": str(folder / "spool")}
    command = [sys.executable, *(RUN if launcher else []), *options.split(), str(script)]
    process = subprocess.run(
        ["bash", "-c", f"{shlex.join(command)} {redirection}; exit $?"],
        env={**env, **ours, "GRADLEDGER_ON_FINDING": "off", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=HANGS,
    )
    assert process.returncode == 0, process.stderr
    assert service.steps() == [1, 2, 3]
    return process.stderr


@pytest.mark.parametrize("options", ["-I -OO", STRICT])
def test_a_watched_script_trains_without_a_warning(options: str, tmp_path: Path) -> None:
    with server(takes) as service:
        assert train(service, tmp_path, options, launcher=False) == ""


@pytest.mark.parametrize("options", ["-OO", STRICT])  # -I ignores PYTHONPATH, thus the launcher
def test_a_script_under_the_launcher_trains_without_a_warning(options: str, tmp_path: Path) -> None:
    with server(takes) as service:
        assert train(service, tmp_path, options, launcher=True) == ""


def test_a_script_that_a_shell_starts_without_streams_is_recorded(tmp_path: Path) -> None:
    with server(takes) as service:
        train(service, tmp_path, "", launcher=True, redirection="0<&- >/dev/full 2>&-")
