"""How long a process takes to end after 10,000 steps, with everything sent.

A process trains against a real service on this machine. From its last line on, the clock runs
twice: until everything is sent, and until the process is gone, which for one that trained takes
some time without hooks, too. Afterwards the service is asked whether it has every step. Beside it
stand peers that logged ten scalars at full speed, after a tenth of these steps.
"""

from __future__ import annotations

import argparse
import atexit
import os
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from loggers import PEERS
from report import Measure, Report, arguments, median_of, tell
from training import TINY, K, Loop

STEPS = 10_000
STEPS_OF_OTHERS = 1_000  # or one of them takes minutes to end
GOAL_SECONDS = 0.2
HOOKS, NOTHING = "gradledger", "nothing"
SYNCHRONOUS = "MLflow server, sync"  # has nothing left to send


def child(way: str, steps: int) -> None:
    """Train or log, and say when the script is done; what follows is the end of the process."""
    if way in PEERS:
        with PEERS[way]() as log:
            for step in range(steps):
                log(step, 1.0 / (step + 1))
            tell_time("ended")
        tell_time("sent")
        return
    loop = Loop(TINY)
    atexit.register(tell_time, "sent")  # before the hooks, so that it is called after them
    if way == HOOKS:
        import gradledger  # noqa: PLC0415 (not without hooks)

        gradledger.watch(loop.model, loop.optimizers[0], name="end", overhead="full")
    for _ in range(steps):
        loop.step(loop.window())
    tell_time("ended")


def tell_time(what: str) -> None:
    """For the parent, whose clock is the same."""
    print(f"\n{what} at {time.time()}", flush=True)


@dataclass(frozen=True)
class Asked:
    """What the command line asks for."""

    steps: int
    peers: str

    def end_of(self, way: str, url: str = "") -> tuple[float, float] | str:
        """Seconds until all was sent, and until the process was gone; or why it failed."""
        python = self.peers if way in PEERS else sys.executable
        script = os.path.abspath(__file__)
        steps = self.steps if way == HOOKS else min(self.steps, STEPS_OF_OTHERS)
        command = [python, script, "--child", way, "--steps", str(steps)]
        named = {"OMP_NUM_THREADS": "1", "GRADLEDGER_URL": url, "GRADLEDGER_SPOOL": "off"}
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run(
                command,
                cwd=folder,
                env=os.environ | named,
                capture_output=True,
                text=True,
                check=False,
            )
            gone = time.time()
        if done.returncode:
            return (done.stderr.strip().splitlines() or ["killed"])[-1]
        ended, sent = re.findall(r"^(?:ended|sent) at (.*)", done.stdout, re.MULTILINE)
        return float(sent) - float(ended), gone - float(ended)


def with_hooks(asked: Asked, rounds: int) -> list[Measure]:
    """The end with hooks and without, in turns; and the steps that the service lacks."""
    from helpers.service import running_service  # noqa: PLC0415 (not in the peers' environment)

    taken: dict[str, list[tuple[float, float]]] = {NOTHING: [], HOOKS: []}
    missing = 0
    with tempfile.TemporaryDirectory() as folder:
        for number in range(rounds):
            with running_service(Path(folder) / f"{number}.db") as service:
                for way, times in taken.items():
                    took = asked.end_of(way, service.url)
                    if isinstance(took, str):
                        sys.exit(took)
                    times.append(took)
                (run,) = service.get("/runs").json()["runs"]
                missing += asked.steps - run["steps"]
    sent, gone = zip(*taken[HOOKS], strict=True)
    plain = [whole for _, whole in taken[NOTHING]]
    lacking = "steps that the service does not have then"
    return [
        median_of("hooks: until everything is sent", sent, "s", "0.05 s", GOAL_SECONDS),
        median_of("hooks: until the process is gone", gone, "s"),
        median_of("without hooks: until the process is gone", plain, "s"),
        Measure(lacking, missing, "", goal="0", holds=missing == 0),
    ]


def main() -> None:
    """The command."""
    parser = arguments(__doc__)
    parser.add_argument("--peers", default=sys.executable, help="the Python that has the peers")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.child:
        child(asked.child, asked.steps)
        return
    how = Asked(asked.steps, os.path.abspath(asked.peers))
    title = f"The end of a process, after {asked.steps:,} steps"
    made = Report(title, "python bench/process_end.py")
    made.measures += with_hooks(how, asked.rounds)
    for name in PEERS:
        took = how.end_of(name) if name != SYNCHRONOUS else ""
        if isinstance(took, tuple):
            told = f"{name}, {STEPS_OF_OTHERS:,} steps: until everything is sent"
            made.measures.append(Measure(told, took[0], "s"))
        elif took:
            made.notes.append(f"{name} could not be measured: {took}")
    made.notes.append(f"With hooks each step has K = {K} micro-batches and takes about 1 ms.")
    tell(made, asked.json)


if __name__ == "__main__":
    main()
