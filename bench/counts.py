"""Counts instead of times: system calls, memory in use, memory growth over a long run.

System calls of the training thread, with and without hooks, come from strace if it is installed.
The interpreter waits on a futex while another thread holds its lock: those calls are counted
separately. Memory is measured over 100,000 steps while the service is down.
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

from report import Measure, Report, arguments, publish
from services import NOBODY, service
from training import TINY, K, Loop

import gradledger

TRACED_STEPS = 500
LONG_STEPS = 100_000
SETTLED = 5  # the part of a long run, a fifth, in which buffers fill up to their bounds
SAMPLES = 50  # of the memory, over a long run
GROWTH_MB = 2.0
BEGIN, END = "/gradledger-bench-begins", "/gradledger-bench-ends"


# ---------------------------------------------------------------- in a separate process


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
    with tempfile.TemporaryDirectory() as folder, service("accepts") as url:
        trace = Path(folder) / "trace"
        strace = ("strace", "-f", "-qq", "-o", str(trace))
        in_a_process("--traced", "hooked" if hooked else "plain", "--url", url, before=strace)
        trace_lines = trace.read_text().splitlines()
    begun = next(number for number, line in enumerate(trace_lines) if BEGIN in line)
    ended = next(number for number, line in enumerate(trace_lines) if END in line)
    thread = trace_lines[begun].split()[0]
    ours = (line for line in trace_lines[begun + 1 : ended] if line.split()[0] == thread)
    matches = (re.match(r"\d+ +(\w+)\(", line) for line in ours)  # a call resumed has no such name
    return Counter(match[1] for match in matches if match)


def system_calls(report: Report) -> None:
    """How many the hooks add."""
    if shutil.which("strace") is None:
        report.notes.append("System calls were not counted: strace is not installed.")
        return
    plain, hooked = calls(hooked=False), calls(hooked=True)
    added = {name: hooked[name] - plain[name] for name in hooked | plain}
    waits = added.pop("futex", 0)
    more = {name: count for name, count in sorted(added.items()) if count > 0}
    prefix = f"system calls of the training thread in {TRACED_STEPS} steps"
    # calls of the memory allocator vary between runs, with and without hooks
    ours = sum(count for name, count in more.items() if name not in ("brk", "mmap", "munmap"))
    report.measures.append(Measure(f"{prefix}: of the hooks", ours, "", goal="0", holds=ours == 0))
    report.measures.append(Measure(f"{prefix}: the interpreter lock", waits, ""))
    listed = ", ".join(f"{name} {count:+}" for name, count in sorted(added.items()) if count)
    report.notes.append(
        f"Difference in system calls with and without hooks, over {TRACED_STEPS} steps: "
        f"{listed or 'none'}; futex {waits:+}: the interpreter lock, which passes to the "
        "background thread when there is something to send."
    )


def memory(report: Report, steps: int) -> None:
    """That it does not grow."""
    with service("accepts") as url:
        hooked, plain = json.loads(in_a_process("--blocks", "--url", url))
    name = f"memory blocks held by the record of a step until it is sent, K = {K}"
    report.measures.append(Measure(name, hooked - plain, ""))
    held = json.loads(in_a_process("--long", str(steps)))
    part = len(held) // SETTLED
    grown = statistics.median(held[-part:]) - statistics.median(held[part : 2 * part])
    name = f"memory growth over the last four fifths of {steps:,} steps, service down"
    goal = f"under {GROWTH_MB:g} MB"
    report.measures.append(Measure(name, grown, "MB", goal=goal, holds=grown < GROWTH_MB))
    report.notes.append(
        f"The process used {held[0]:.1f} MB after {steps // SAMPLES:,} steps and "
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
    options = parser.parse_args()
    if options.traced:
        traced(options.traced == "hooked", options.url)
    elif options.long:
        long(options.long)
    elif options.blocks:
        blocks(options.url)
    else:
        report = Report("Counts", "python bench/counts.py")
        system_calls(report)
        memory(report, options.steps)
        publish(report, options.json)


if __name__ == "__main__":
    main()
