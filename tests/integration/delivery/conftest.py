"""Runs real trainings in separate processes; reads what reached the service or the disk."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from helpers.batches import eventually
from helpers.patience import HANGS
from helpers.service import Service

# The beginning of every script: `train` takes optimizer steps of two micro-batches. An optimizer
# imports PyTorch's compiler, which takes a second and is replaced by a stub.
PRELUDE = """
import os, signal, sys, time, types
import torch
import torch.nn.functional as F
import gradledger

torch.set_num_threads(1)

def without_compiler():
    nothing = types.SimpleNamespace(disable=lambda f, *_, **__: f, graph_break=lambda: None)
    torch._dynamo = sys.modules["torch._dynamo"] = nothing

def train(steps, pause=0.0):
    without_compiler()
    model = torch.nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(steps):
        for tokens in (2, 6):
            logits = model(torch.randn(tokens, 4))
            (F.cross_entropy(logits, torch.randint(0, 3, (tokens,))) / 2).backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(pause)
"""
WITH_HOOKS = [sys.executable, "-m", "gradledger.cli", "run", "--"]


@dataclass
class ScriptResult:
    """The result of a script."""

    status: int
    out: str
    err: str


@dataclass
class Scripts:
    """Runs scripts in one folder with one spool."""

    folder: Path
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def spool(self) -> Path:
        """The folder for records that they cannot send."""
        return self.folder / "spool"

    def start(self, code: str, url: str, *command: str, **environ: str) -> subprocess.Popen[str]:
        """Start a script, under ``gradledger run`` unless another command is given."""
        path = self.folder / f"script{len(list(self.folder.glob('script*.py')))}.py"
        path.write_text(PRELUDE + code)
        env = {k: v for k, v in os.environ.items() if not k.startswith("GRADLEDGER_")}
        env |= {"GRADLEDGER_URL": url, "GRADLEDGER_SPOOL": str(self.spool), "OMP_NUM_THREADS": "1"}
        env["GRADLEDGER_OVERHEAD"] = "full"  # else steps as short as these are sampled
        env["GRADLEDGER_ON_FINDING"] = "off"  # no output except messages about delivery
        words = [*(command or (*WITH_HOOKS, sys.executable)), str(path)]
        process = subprocess.Popen(
            words,
            env={**env, **environ},
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.started.append(process)
        return process

    def end(self) -> None:
        """Kill the processes that a failed test left running, with their children."""
        for process in self.started:
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.communicate()

    def run(self, code: str, url: str, *command: str, **environ: str) -> ScriptResult:
        """Run a script until it ends."""
        process = self.start(code, url, *command, **environ)
        out, err = process.communicate(timeout=HANGS)
        return ScriptResult(process.returncode, out, err)

    def on_disk(self) -> int:
        """The number of steps in the spool."""
        texts = [path.read_bytes() for path in self.spool.rglob("*.jsonl")]
        return sum(text.count(b'"type":"step"') for text in texts)

    def gradledger(self, *words: object) -> ScriptResult:
        """Run a gradledger command."""
        command = [sys.executable, "-m", "gradledger.cli", *map(str, words)]
        env = {k: v for k, v in os.environ.items() if not k.startswith("GRADLEDGER_")}
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=HANGS, env=env, cwd=self.folder
        )
        return ScriptResult(done.returncode, done.stdout, done.stderr)


@pytest.fixture
def scripts(tmp_path: Path) -> Iterator[Scripts]:
    """Scripts of one test."""
    started = Scripts(tmp_path)
    yield started
    started.end()


@pytest.fixture
def nowhere() -> str:
    """The address of a service that is down."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        return f"http://127.0.0.1:{free.getsockname()[1]}"


def stored(service: Service) -> dict[str, list[int]]:
    """The evaluated steps of every run, by its id."""
    runs = [run["id"] for run in service.get("/runs").json()["runs"]]
    return {run: service.get(f"/runs/{run}/series").json()["step"] for run in runs}


def all_stored(service: Service, *counts: int) -> bool:
    """Whether there is one run per count, with the steps 1 to that count, in any order."""
    wanted = sorted(list(range(1, count + 1)) for count in counts)
    return eventually(60, lambda: sorted(stored(service).values()) == wanted)
