"""Runs whole commands, with interpreters started cold, beside a service or without one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from helpers.patience import HANGS
from integration.delivery.conftest import Scripts, nowhere

__all__ = ["nowhere"]

WITH_HOOKS = [sys.executable, "-m", "gradledger.cli", "run", "--"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2"]


@dataclass
class Commands:
    """Runs commands in one folder with one spool. The script is the last argument of each."""

    scripts: Scripts
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    def start(
        self, code: str, url: str, *command: str, environ: Mapping[str, str] | None = None
    ) -> subprocess.Popen[str]:
        """Start a command."""
        process = subprocess.Popen(
            [*command, str(self.scripts.write(code))],
            env=self.scripts.environment(url, environ),
            cwd=self.scripts.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.started.append(process)
        return process

    def run(self, code: str, url: str, *command: str) -> CompletedProcess[str]:
        """Run a command to its end."""
        process = self.start(code, url, *command)
        out, err = process.communicate(timeout=HANGS)
        return CompletedProcess(command, process.returncode, out, err)

    def end(self) -> None:
        """Kill the commands that a failed test left running, with their children."""
        for process in self.started:
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.communicate()


@pytest.fixture
def commands(tmp_path: Path) -> Iterator[Commands]:
    """Commands of one test."""
    started = Commands(Scripts(tmp_path))
    yield started
    started.end()
