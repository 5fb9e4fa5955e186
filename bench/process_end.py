"""How long a process takes to end after 10,000 steps, with all records sent.

A process trains against a real service on this machine. Two times are measured
from its last line: until all records are sent, and until the process has ended, which takes some
time without hooks, too. Then the benchmark checks that the service has every step. For comparison,
peers log ten scalars at full speed, for a tenth of the steps.
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
from report import Measure, Report, arguments, median_of, publish
from training import TINY, K, Loop

STEPS = 10_000
STEPS_OF_OTHERS = 1_000  # or one of them takes minutes to end
GOAL_SECONDS = 0.2
HOOKS, NOTHING = "gradledger", "nothing"
SYNCHRONOUS = "MLflow server, sync"  # has nothing left to send


def child(way: str, steps: int) -> None:
    """Train or log, and print the time of the last line; then the process ends."""
    if way in PEERS:
        with PEERS[way]() as log:
            for step in range(steps):
                log(step, 1.0 / (step + 1))
            print_time("ended")
        print_time("sent")
        return
    loop = Loop(TINY)
    atexit.register(print_time, "sent")  # before the hooks, so that it is called after them
    if way == HOOKS:
        import gradledger  # noqa: PLC0415 (not without hooks)

        gradledger.watch(loop.model, loop.optimizers[0], name="end", overhead="full")
    for _ in range(steps):
        loop.step(loop.window())
    print_time("ended")


def print_time(what: str) -> None:
    """For the parent, whose clock is the same."""
    print(f"\n{what} at {time.time()}", flush=True)


@dataclass(frozen=True)
class Options:
    """The options of the command line."""

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


def with_hooks(runner: Options, rounds: int) -> list[Measure]:
    """The end with hooks and without, in turns; and the steps that the service lacks."""
    from helpers.service import running_service  # noqa: PLC0415 (not in the peers' environment)

    taken: dict[str, list[tuple[float, float]]] = {NOTHING: [], HOOKS: []}
    missing = 0
    with tempfile.TemporaryDirectory() as folder:
        for number in range(rounds):
            with running_service(Path(folder) / f"{number}.db") as service:
                for way, times in taken.items():
                    took = runner.end_of(way, service.url)
                    if isinstance(took, str):
                        sys.exit(took)
                    times.append(took)
                (run,) = service.get("/runs").json()["runs"]
                missing += runner.steps - run["steps"]
    sent, gone = zip(*taken[HOOKS], strict=True)
    plain = [whole for _, whole in taken[NOTHING]]
    lacking = "steps missing in the service"
    return [
        median_of("hooks: until all records are sent", sent, "s", "0.05 s", GOAL_SECONDS),
        median_of("hooks: until the process has ended", gone, "s"),
        median_of("without hooks: until the process has ended", plain, "s"),
        Measure(lacking, missing, "", goal="0", holds=missing == 0),
    ]


def main() -> None:
    """The command."""
    parser = arguments(__doc__)
    parser.add_argument("--peers", default=sys.executable, help="the Python that has the peers")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(options.child, options.steps)
        return
    runner = Options(options.steps, os.path.abspath(options.peers))
    title = f"End of a process after {options.steps:,} steps"
    report = Report(title, "python bench/process_end.py")
    report.measures += with_hooks(runner, options.rounds)
    for name in PEERS:
        took = runner.end_of(name) if name != SYNCHRONOUS else ""
        if isinstance(took, tuple):
            measure_name = f"{name}, {STEPS_OF_OTHERS:,} steps: until all records are sent"
            report.measures.append(Measure(measure_name, took[0], "s"))
        elif took:
            report.notes.append(f"{name} could not be measured: {took}")
    report.notes.append(f"A step with hooks has K = {K} micro-batches and takes about 1 ms.")
    publish(report, options.json)


if __name__ == "__main__":
    main()
