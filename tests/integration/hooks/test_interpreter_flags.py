"""Whatever switches the interpreter was started with, the hooks work and warn of nothing."""

from __future__ import annotations

import os
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
SWITCHES = ["-O", "-OO", "-W error", "-X dev", "-bb", "-I", "-E", "-X dev -W error -bb"]
RUN = ["-m", "gradledger.cli", "run", "--", sys.executable]


def trained(service: Server, folder: Path, switches: list[str], under: list[str]) -> str:
    """What a training wrote to standard error; the service has its steps."""
    script = folder / "script.py"
    script.write_text(SCRIPT.replace("WATCH", str(not under)))
    env = {k: v for k, v in os.environ.items() if not k.startswith("GRADLEDGER_")}
    ours = {"GRADLEDGER_URL": service.url, "GRADLEDGER_SPOOL": str(folder / "spool")}
    done = subprocess.run(
        [sys.executable, *under, *switches, str(script)],
        env={**env, **ours, "GRADLEDGER_ON_FINDING": "off", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=HANGS,
    )
    assert done.returncode == 0, done.stderr
    assert service.steps() == [1, 2, 3]
    return done.stderr


@pytest.mark.parametrize("switches", SWITCHES)
def test_a_watched_script_trains_without_a_warning(switches: str, tmp_path: Path) -> None:
    with server(takes) as service:
        assert trained(service, tmp_path, switches.split(), []) == ""


@pytest.mark.parametrize("switches", [s for s in SWITCHES if s not in ("-I", "-E")])
def test_so_does_one_under_the_launcher(switches: str, tmp_path: Path) -> None:
    with server(takes) as service:
        assert trained(service, tmp_path, switches.split(), RUN) == ""
