"""Runs one program once, with or without the hooks, and returns its outcome."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from helpers.ports import reserved_port
from zoo.catalogue import Program
from zoo.forkserver import end_of

HOOKS = Path(__file__).parents[2] / "hooks"
sys.path.insert(0, str(HOOKS))

from gradledger import autostart  # noqa: E402 (the standard library alone, in any interpreter)

LONGEST_SECONDS = 60.0


@dataclass(frozen=True)
class Outcome:
    """The outcome of a program."""

    status: int  # the exit status; of a process that died by a signal, minus its number
    stdout: bytes
    stderr: str
    seconds: float  # from its start to its end, without those for which it waited for a processor
    peak_kib: int  # of resident memory, of the process or of the largest one it waited for
    timed_out: bool = False


class ForkServer:
    """One interpreter that has imported torch and forks programs, one at a time."""

    def __init__(self, python: str) -> None:
        command = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})"
        self._process = subprocess.Popen(
            [python, "-c", f"{command}; import forkserver; forkserver.main()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=clean_environment(),
            text=True,
        )

    def run(self, program: Program, folder: Path, env: Mapping[str, str], hooks: bool) -> Outcome:
        """Run the program in a forked child, or in one for each of its ranks."""
        with reserved_port() as port:
            ranks = _environments_of_ranks(program.ranks, port) if program.ranks else [{}]
            return self._run(program, folder, env, hooks, ranks)

    def _run(
        self,
        program: Program,
        folder: Path,
        env: Mapping[str, str],
        hooks: bool,
        ranks: Sequence[Mapping[str, str]],
    ) -> Outcome:
        outputs = [(folder / f"stdout-{n}", folder / f"stderr-{n}") for n, _ in enumerate(ranks)]
        request = {
            "program": str(program.path),
            "folder": str(folder / "work"),
            "hooks": str(autostart.PATH) if hooks else None,
            "children": [
                {"stdout": str(stdout), "stderr": str(stderr), "env": {**env, **rank}}
                for rank, (stdout, stderr) in zip(ranks, outputs, strict=True)
            ],
        }
        assert self._process.stdin
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        with _killed_when_late(self._answer()) as late:
            ends = self._answer()
        outcomes = []
        for (stdout, stderr), (status, seconds, peak) in zip(outputs, ends, strict=True):
            outcomes.append(_outcome(stdout, stderr, status, seconds, peak, late.is_set()))
        return outcomes[0] if len(outcomes) == 1 else _of_ranks(outcomes)

    def close(self) -> None:
        """End the interpreter."""
        assert self._process.stdin and self._process.stdout
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()

    def _answer(self) -> Any:
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the fork server ended with status {self._process.wait()}")
        return json.loads(line)


def run_cold(python: str, program: Program, folder: Path, env: Mapping[str, str]) -> Outcome:
    """Run the program in a new interpreter."""
    command = [python, *program.flags, str(program.path)]
    if program.shell:
        command = ["sh", "-c", program.shell, "sh", *command]
    outputs = folder / "stdout-0", folder / "stderr-0"
    with outputs[0].open("wb") as stdout, outputs[1].open("wb") as stderr:
        began = time.monotonic()
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            env=dict(env),
            cwd=folder / "work",
            start_new_session=True,
        )
        with _killed_when_late([process.pid]) as late:
            status, seconds, peak = end_of(process.pid, began)
    process.returncode = os.waitstatus_to_exitcode(status)
    return _outcome(*outputs, status, seconds, peak, late.is_set())


def clean_environment() -> dict[str, str]:
    """The environment of this process without settings of the hooks, with one OpenMP thread.

    glibc is to give each large block back at once, as it does in a young process. Else it learns
    from the first ones to keep them, and the peak of memory is a matter of chance.
    """
    env = {key: value for key, value in os.environ.items() if not key.startswith("GRADLEDGER_")}
    for name in ("PYTHONPATH", "PYTHONHOME", "PYTHONWARNINGS"):
        env.pop(name, None)
    return {**env, "OMP_NUM_THREADS": "1", "MALLOC_MMAP_THRESHOLD_": str(128 * 1024)}


def hooked_environment(
    program: Program, env: Mapping[str, str], url: str, project: str, spool: Path
) -> dict[str, str]:
    """The environment in which ``gradledger run`` starts a command."""
    hooked = autostart.environment(
        env, ["python", program.path.name], url=url, project=project, name=program.name
    )
    return {**hooked, "GRADLEDGER_SPOOL": str(spool)}


def _outcome(
    stdout: Path, stderr: Path, status: int, seconds: float, peak: int, late: bool
) -> Outcome:
    return Outcome(
        os.waitstatus_to_exitcode(status),
        stdout.read_bytes(),
        stderr.read_text(errors="replace"),
        seconds,
        peak,
        late,
    )


def _of_ranks(outcomes: list[Outcome]) -> Outcome:
    """The outcomes of all ranks combined: first nonzero status, latest end, highest peak."""
    statuses = [outcome.status for outcome in outcomes]
    printed = [outcome.stdout for outcome in outcomes] + [f"ranks ended with {statuses}\n".encode()]
    return Outcome(
        next((status for status in statuses if status), 0),
        b"".join(printed),
        "".join(outcome.stderr for outcome in outcomes),
        max(outcome.seconds for outcome in outcomes),
        max(outcome.peak_kib for outcome in outcomes),
        outcomes[0].timed_out,
    )


def _environments_of_ranks(ranks: int, port: int) -> list[dict[str, str]]:
    """The environment variables that ``torchrun`` sets."""
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    world = {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks)}
    return [
        {**address, **world, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(ranks)
    ]


@contextmanager
def _killed_when_late(leaders: Sequence[int]) -> Iterator[threading.Event]:
    """Kill the process groups of ``leaders`` after a timeout, and their rest at the end."""
    late = threading.Event()

    def kill() -> None:
        late.set()
        _kill_groups(leaders)

    timer = threading.Timer(LONGEST_SECONDS, kill)
    timer.start()
    try:
        yield late
    finally:
        timer.cancel()
        _kill_groups(leaders)


def _kill_groups(leaders: Sequence[int]) -> None:
    for leader in leaders:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(leader, signal.SIGKILL)
