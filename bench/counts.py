"""What can be counted instead of timed: system calls, memory held, growth over a long run.

System calls of the training thread, with hooks and without, come from strace (where it is
installed). The interpreter itself waits on a futex when another thread holds its lock: those calls
are counted apart. Memory is watched over 100,000 steps while no service is there.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from report import Measure, Report, arguments, tell
from services import NOBODY, service
from training import TINY, K, Loop

import gradledger

TRACED_STEPS = 500
LONG_STEPS = 100_000
SETTLED = 5  # the part of a long run, a fifth, in which buffers fill up to their bounds
SAMPLES = 50  # of the memory, over a long run
GROWTH_MB = 2.0
BEGIN, END = "/gradledger-bench-begins", "/gradledger-bench-ends"


# ---------------------------------------------------------------- in a process of its own


def traced(hooked: bool, url: str) -> None:
    """Steps between two marks that a trace shows."""
    loop = Loop(TINY)
    if hooked:
        gradledger.watch(loop.model, loop.optimizers[0], url=url, overhead="full")
    windows = [loop.window() for _ in range(TRACED_STEPS)]
    for window in windows[:20]:
        loop.step(window)
    os.path.exists(BEGIN)
    for window in windows:
        loop.step(window)
    os.path.exists(END)


def long(steps: int) -> None:
    """Megabytes that the process holds, over a long run whose service is not there."""
    loop = Loop(TINY, k=1)
    held = []
    with gradledger.watch(loop.model, loop.optimizers[0], url=NOBODY, overhead="full"):
        window = loop.window()
        for step in range(steps):
            loop.step(window)
            if (step + 1) % (steps // SAMPLES) == 0:
                held.append(resident())
    print(json.dumps(held))


def blocks(url: str) -> None:
    """Blocks of memory that Python holds more after each step, with no thread to take them away."""
    loop = Loop(TINY)
    window = loop.window()
    with gradledger.watch(loop.model, loop.optimizers[0], url=url, overhead="full") as ledger:
        hooked = [_grown(loop.step, window) for _ in range(200)]
        ledger.pause()
        plain = [_grown(loop.step, window) for _ in range(200)]
    print(json.dumps([statistics.median(hooked), statistics.median(plain)]))


def _grown(step: Callable[[Any], float], window: Any) -> int:
    gc.disable()
    before = sys.getallocatedblocks()
    step(window)
    grown = sys.getallocatedblocks() - before
    gc.enable()
    return grown


def resident() -> float:
    """Megabytes that the process holds."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


# ---------------------------------------------------------------- the measures


def in_a_process(*command: str, before: tuple[str, ...] = ()) -> str:
    """What this file, called again with other arguments, printed."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as spool:
        done = subprocess.run(
            [*before, sys.executable, os.path.abspath(__file__), *command],
            env=environment | {"GRADLEDGER_SPOOL": spool},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            check=True,
        )
    return done.stdout


def calls(hooked: bool) -> Counter[str]:
    """System calls of the training thread, between the marks."""
    with tempfile.TemporaryDirectory() as folder, service("takes") as url:
        trace = Path(folder) / "trace"
        strace = ("strace", "-f", "-qq", "-o", str(trace))
        in_a_process("--traced", "hooked" if hooked else "plain", "--url", url, before=strace)
        told = trace.read_text().splitlines()
    begun = next(number for number, line in enumerate(told) if BEGIN in line)
    ended = next(number for number, line in enumerate(told) if END in line)
    thread = told[begun].split()[0]
    ours = (line for line in told[begun + 1 : ended] if line.split()[0] == thread)
    named = (re.match(r"\d+ +(\w+)\(", line) for line in ours)  # a call resumed has no such name
    return Counter(found[1] for found in named if found)


def system_calls(made: Report) -> None:
    """How many the hooks add."""
    if shutil.which("strace") is None:
        made.notes.append("System calls were not counted: strace is not installed.")
        return
    plain, hooked = calls(hooked=False), calls(hooked=True)
    added = {name: hooked[name] - plain[name] for name in hooked | plain}
    waits = added.pop("futex", 0)
    more = {name: count for name, count in sorted(added.items()) if count > 0}
    told = f"system calls of the training thread in {TRACED_STEPS} steps"
    # what the system's allocator asks for comes now and then, with hooks and without
    ours = sum(count for name, count in more.items() if name not in ("brk", "mmap", "munmap"))
    made.measures.append(Measure(f"{told}: of the hooks", ours, "", goal="0", holds=ours == 0))
    made.measures.append(Measure(f"{told}: the interpreter's lock", waits, ""))
    named = ", ".join(f"{name} {count:+}" for name, count in sorted(added.items()) if count)
    made.notes.append(
        f"Difference in system calls, with hooks and without, over {TRACED_STEPS} steps: "
        f"{named or 'none'}; futex {waits:+}, which is the interpreter's lock, passed on when the "
        "background thread has something to send."
    )


def memory(made: Report, steps: int) -> None:
    """That it does not grow."""
    with service("takes") as url:
        hooked, plain = json.loads(in_a_process("--blocks", "--url", url))
    named = f"blocks of memory that a step's record holds until it is sent, K = {K}"
    made.measures.append(Measure(named, hooked - plain, ""))
    held = json.loads(in_a_process("--long", str(steps)))
    part = len(held) // SETTLED
    grown = statistics.median(held[-part:]) - statistics.median(held[part : 2 * part])
    told = f"memory gained over the last four fifths of {steps:,} steps, the service down"
    goal = f"under {GROWTH_MB:g} MB"
    made.measures.append(Measure(told, grown, "MB", goal=goal, holds=grown < GROWTH_MB))
    made.notes.append(
        f"The process held {held[0]:.1f} MB after {steps // SAMPLES:,} steps and "
        f"{held[-1]:.1f} MB after {steps:,}."
    )


def main() -> None:
    """The command."""
    parser = arguments(__doc__)
    parser.add_argument("--steps", type=int, default=LONG_STEPS)
    for name in ("--traced", "--url"):
        parser.add_argument(name, default="", help=argparse.SUPPRESS)
    parser.add_argument("--long", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--blocks", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.traced:
        traced(asked.traced == "hooked", asked.url)
    elif asked.long:
        long(asked.long)
    elif asked.blocks:
        blocks(asked.url)
    else:
        made = Report("Counts", "python bench/counts.py")
        system_calls(made)
        memory(made, asked.steps)
        tell(made, asked.json)


if __name__ == "__main__":
    main()
