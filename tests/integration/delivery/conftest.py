"""Runs real trainings in separate processes; reads what reached the service or the disk."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from gradledger import autostart
from gradledger.delivery import pipeline
from helpers.batches import eventually
from helpers.forkserver import Python
from helpers.patience import HANGS
from helpers.ports import reserved_port
from helpers.service import Service

# The beginning of every script: `train` takes optimizer steps of two micro-batches. The end waits
# for a slow service, and a script that waits until a time limit of the end hangs.
PRELUDE = f"""
import os, signal, sys, time
from pathlib import Path
import torch
import torch.nn.functional as F
import gradledger
from gradledger.delivery import pipeline, uploader

torch.set_num_threads(1)
pipeline.EXIT_SECONDS = pipeline.EXIT_SECONDS_UNANSWERED = {2 * HANGS}
pipeline.EXIT_SECONDS_UNSAVED = {2 * HANGS}

def train(steps):
    model = torch.nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(steps):
        for tokens in (2, 6):
            logits = model(torch.randn(tokens, 4))
            (F.cross_entropy(logits, torch.randint(0, 3, (tokens,))) / 2).backward()
        optimizer.step()
        optimizer.zero_grad()

def wait_until(happened):
    while not happened():
        time.sleep(0.01)

def on_disk():
    texts = [path.read_text() for path in Path("spool").rglob("*.jsonl")]
    return sum(text.count('"type":"step"') for text in texts)
"""


@dataclass
class Scripts:
    """Runs scripts in one folder with one spool."""

    folder: Path
    started: list[Python] = field(default_factory=list)

    @property
    def spool(self) -> Path:
        """The folder for records that they cannot send."""
        return self.folder / "spool"

    def write(self, code: str) -> Path:
        """A script that begins with the prelude."""
        path = self.folder / f"script{len(list(self.folder.glob('script*.py')))}.py"
        path.write_text(PRELUDE + code)
        return path

    def environment(self, url: str, environ: Mapping[str, str] | None = None) -> dict[str, str]:
        """The environment of a script, without the hooks."""
        env = {k: v for k, v in os.environ.items() if not k.startswith("GRADLEDGER_")}
        env |= {"GRADLEDGER_URL": url, "GRADLEDGER_SPOOL": str(self.spool), "OMP_NUM_THREADS": "1"}
        env["GRADLEDGER_OVERHEAD"] = "full"  # else steps as short as these are sampled
        env["GRADLEDGER_ON_FINDING"] = "off"  # no output except messages about delivery
        return {**env, **(environ or {})}

    def start(
        self,
        code: str,
        url: str,
        *arguments: str,
        hooks: bool = True,
        teardown: bool = False,
        environ: Mapping[str, str] | None = None,
    ) -> Python:
        """Start a script, with ``hooks`` as ``gradledger run`` does."""
        path, env = self.write(code), self.environment(url, environ)
        if hooks:
            env = autostart.environment(env, [sys.executable, str(path), *arguments])
        process = Python([path, *arguments], env, self.folder, teardown=teardown)
        self.started.append(process)
        return process

    def end(self) -> None:
        """Kill the processes that a failed test left running, with their children."""
        for process in self.started:
            process.end_session()

    def run(
        self,
        code: str,
        url: str,
        *arguments: str,
        hooks: bool = True,
        teardown: bool = False,
        environ: Mapping[str, str] | None = None,
    ) -> CompletedProcess[str]:
        """Run a script until it ends."""
        process = self.start(code, url, *arguments, hooks=hooks, teardown=teardown, environ=environ)
        out, err = process.communicate(timeout=HANGS)
        return CompletedProcess([code, *arguments], process.wait(), out, err)

    def on_disk(self) -> int:
        """The number of steps in the spool."""
        return len(step_lines(self.spool))


def step_lines(spool: Path) -> list[bytes]:
    """The step records in a spool."""
    lines: list[bytes] = []
    for path in sorted(spool.rglob("*.jsonl")):
        with suppress(FileNotFoundError):  # sent in the meantime
            lines += path.read_bytes().splitlines()
    return [line for line in lines if b'"type":"step"' in line]


@pytest.fixture
def scripts(tmp_path: Path) -> Iterator[Scripts]:
    """Scripts of one test."""
    started = Scripts(tmp_path)
    yield started
    started.end()


@pytest.fixture
def nowhere() -> Iterator[str]:
    """The address of a service that is down, where a test may start one."""
    with reserved_port() as port:
        yield f"http://127.0.0.1:{port}"


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipeline with short ticks, whose end has no time limit unless the test sets one."""
    monkeypatch.setattr(pipeline, "TICK_SECONDS", 0.01)
    monkeypatch.setattr(pipeline, "READY_SECONDS", HANGS)
    monkeypatch.setattr(pipeline, "EXIT_SECONDS", HANGS)
    monkeypatch.setattr(pipeline, "EXIT_SECONDS_UNANSWERED", HANGS)
    monkeypatch.setattr(pipeline, "EXIT_SECONDS_UNSAVED", HANGS)


def stored(service: Service) -> dict[str, list[int]]:
    """The evaluated steps of every run, by its id."""
    runs = [run["id"] for run in service.get("/runs").json()["runs"]]
    return {run: service.get(f"/runs/{run}/series").json()["step"] for run in runs}


def all_stored(service: Service, *counts: int) -> bool:
    """Whether there is one run per count, with the steps 1 to that count, in any order."""
    wanted = sorted(list(range(1, count + 1)) for count in counts)
    return eventually(HANGS, lambda: sorted(stored(service).values()) == wanted)
