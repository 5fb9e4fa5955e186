"""CPU time added to the training thread per step: the hooks, and peers that log ten scalars.

Each tool runs in a separate process, which trains the same windows in blocks of three kinds, in
changing order: without the tool, with it, and with clocks around the calls of the tool. This gives
two values:

  added    the time of a whole step with the tool minus the same step without: complete, but noisy
  inside   the time between entering and leaving the calls of the tool: little noise, but without
           what the hooks run in the middle of a backward, and without the waits of a peer

All observers are on, the service accepts everything, the loop clips (else: see norm_cost.py).

These values are for recorded steps. With steps this short, the hooks sample the steps of a run to
stay within their share of its time. The third value is the mean over all steps of such a run:

  usual    inside, over some thousand steps after the first ones, with the default overhead
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from loggers import PEERS, Log
from report import Measure, Report, arguments, below, median_of, publish, shown
from sandwich import Sandwich
from services import service
from training import DEMO, GPT, PAIR, TINY, K, Loop, Size, Window

from gradledger.capture.step_sampling import BURST, FIRST_STEPS, OVERHEAD_SHARE

HOOKS, USUAL = "gradledger", "gradledger, usual"
GOAL_US, GOAL_EACH_US = 150.0, 60.0  # by step, by micro-batch
FLOOR = "55 to 70 us: put into a queue, and build the record"
BLOCK = 6  # steps in a row of one kind
WARM_UP = 2  # of each
BLANK_STEPS = 64  # before and after, to know what the clocks take
# of a run with the usual overhead: whole periods of its step sampling
LONG_STEPS = {GPT.name: 4096, PAIR.name: 4096, TINY.name: 4096, DEMO.name: 1024}
KINDS = ("without", "with", "timed")
SIZES = {size.name: size for size in (GPT, PAIR, TINY, DEMO)}
WATCHED = (GPT.name, TINY.name)  # sizes of which watched steps are measured too

Times = dict[str, list[float]]  # microseconds: added, inside, without


class Way(Protocol):
    """Something that a step can have on."""

    def on(self, timed: bool) -> None:
        """From now on."""

    def off(self) -> None:
        """No longer."""

    def after_step(self, loss: float) -> None:
        """Where a loop logs."""

    def inside(self) -> float:
        """Seconds in its own calls since the last question."""


class Hooks:
    """gradledger, all observers on."""

    def __init__(
        self, sandwich: Sandwich, url: str, loop: Loop, overhead: float | Literal["full"] = "full"
    ) -> None:
        import gradledger  # noqa: PLC0415 (after the lower clocks)

        self._sandwich = sandwich
        self._ledger = gradledger.watch(loop.model, loop.optimizers[0], url=url, overhead=overhead)
        self._ledger.pause()
        self._timed = False

    def on(self, timed: bool) -> None:
        """Put the hooks in place, and the clocks above them."""
        self._ledger.resume()
        self._timed = timed
        if timed:
            self._sandwich.close()

    def off(self) -> None:
        """Take both away."""
        self._sandwich.open()
        self._ledger.pause()

    def close(self) -> None:
        """Send what is left."""
        self._ledger.close()

    def after_step(self, loss: float) -> None:
        """Nothing: the hooks see the step themselves."""

    def inside(self) -> float:
        """Between the clocks."""
        return self._sandwich.take()


class Logger:
    """A peer that logs after each step."""

    def __init__(self, log: Log) -> None:
        self._log, self._step, self._spent = log, 0, 0.0
        self._is_on = self._timed = False

    def on(self, timed: bool) -> None:
        """Log from now on."""
        self._is_on, self._timed = True, timed

    def off(self) -> None:
        """Log nothing."""
        self._is_on = False

    def after_step(self, loss: float) -> None:
        """Ten scalars."""
        if not self._is_on:
            return
        self._step += 1
        if not self._timed:
            self._log(self._step, loss)
            return
        began = time.thread_time()
        self._log(self._step, loss)
        self._spent += time.thread_time() - began

    def inside(self) -> float:
        """In the calls."""
        spent, self._spent = self._spent, 0.0
        return spent


# ---------------------------------------------------------------- in the process of one way


@contextmanager
def way_called(name: str, loop: Loop) -> Iterator[Way]:
    """The way of that name, ready and off."""
    if name == HOOKS:
        sandwich = Sandwich()
        with service("accepts") as url:
            hooks = Hooks(sandwich, url, loop)
            yield hooks
            hooks.close()
        return
    with PEERS[name]() as log:
        yield Logger(log)


def block(
    loop: Loop, way: Way, kind: str, windows: list[Window]
) -> tuple[list[float], list[float]]:
    """Microseconds of each step, and of each inside the way; without the first ones."""
    steps, inside = [], []
    if kind != "without":
        way.on(timed=kind == "timed")
    way.inside()
    for window in windows:
        began = time.thread_time()
        way.after_step(loop.step(window))
        steps.append((time.thread_time() - began) * 1e6)
        inside.append(way.inside() * 1e6)
    if kind != "without":
        way.off()
    return steps[WARM_UP:], inside[WARM_UP:]


def measure(name: str, size: Size, rounds: int) -> Times:
    """Train all kinds of blocks in turn."""
    loop = Loop(size)
    times: Times = {"added": [], "inside": [], "without": []}
    with way_called(name, loop) as way:
        for number in range(rounds):
            windows = [loop.window() for _ in range(BLOCK)]
            order = KINDS[number % 3 :] + KINDS[: number % 3]
            taken = {kind: block(loop, way, kind, windows) for kind in order}
            plain, hooked = taken["without"][0], taken["with"][0]
            times["without"] += plain
            times["added"] += [b - a for a, b in zip(plain, hooked, strict=True)]
            times["inside"] += taken["timed"][1]
    return times


def usual(size: Size) -> Times:
    """Microseconds per step, and inside the hooks, over a run with the default overhead.

    The clocks also run in skipped steps: their own cost is subtracted.
    """
    loop, sandwich = Loop(size), Sandwich()

    def spent(steps: int) -> float:
        sandwich.take()
        for _ in range(steps):
            loop.step(loop.window())
        return sandwich.take() / steps * 1e6

    sandwich.close()
    clocks = [spent(BLANK_STEPS)]
    sandwich.open()
    with service("accepts") as url:
        hooks = Hooks(sandwich, url, loop, OVERHEAD_SHARE)
        hooks.on(timed=True)
        spent(2 * FIRST_STEPS)
        steps, began = LONG_STEPS[size.name], time.thread_time()
        taken = spent(steps)
        each = (time.thread_time() - began) / steps * 1e6
        hooks.off()
        hooks.close()
    sandwich.close()
    clocks.append(spent(BLANK_STEPS))
    sandwich.open()
    return {"usual": [taken - statistics.mean(clocks)], "step": [each]}


# ---------------------------------------------------------------- one process for each way


@dataclass(frozen=True)
class Options:
    """The options of the command line."""

    rounds: int
    peers: str  # the Python that has them

    def run(self, name: str, size: str) -> Times | str:
        """The values that a separate process measured, or the reason why it failed."""
        script = os.path.abspath(__file__)
        command = [self.peers, script, "--way", name, "--size", size, "--rounds", str(self.rounds)]
        environment = os.environ | {"OMP_NUM_THREADS": "1", "GRADLEDGER_SPOOL": "off"}
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run(
                command, cwd=folder, env=environment, capture_output=True, text=True, check=False
            )
        if done.returncode:
            return (done.stderr.strip().splitlines() or ["killed"])[-1]
        times: Times = json.loads(done.stdout.splitlines()[-1])
        return times


def run_all(options: Options) -> tuple[dict[tuple[str, str], Times], dict[str, str]]:
    """Every way in turn, the hooks before the peers and after them."""
    ours = [(HOOKS, size) for size in WATCHED]
    usual_ways = [(USUAL, size) for size in SIZES]
    theirs = [(name, GPT.name) for name in PEERS]
    taken: dict[tuple[str, str], Times] = {}
    failed: dict[str, str] = {}
    for way in [*ours, *theirs, *ours, *usual_ways]:
        times = options.run(*way)
        if isinstance(times, str):
            failed[way[0]] = times
            continue
        collected = taken.setdefault(way, {kind: [] for kind in times})
        for kind, values in times.items():
            collected[kind] += values
    return taken, failed


def lines(name: str, size: str, times: Times) -> list[Measure]:
    """The rows of one way."""
    if name not in (HOOKS, USUAL):
        prefix = f"{name}, ten scalars"
        return [median_of(f"{prefix}: {kind}", times[kind], "us") for kind in ("added", "inside")]
    if "usual" in times:
        step = Measure(
            f"hooks, {size}: default overhead", statistics.mean(times["usual"]), "us", floor=FLOOR
        )
        k = SIZES[size].k
        each = Measure(f"hooks, {size}: default overhead, per micro-batch", step.value / k, "us")
        return [below(step, GOAL_US if k == K else None), below(each, GOAL_EACH_US)]
    prefix = f"hooks, {size}, recorded step"
    return [median_of(f"{prefix}: {kind}", times[kind], "us") for kind in ("added", "inside")]


def bound(taken: dict[tuple[str, str], Times]) -> str:
    """What the time inside the hooks consists of."""
    cold, warm = (statistics.median(taken[HOOKS, size]["inside"]) for size in WATCHED)
    return (
        f"A step takes {shown(cold)} us inside the hooks with the small GPT and {shown(warm)} us "
        "with the minimal model, which makes the same number of calls. The difference comes from "
        "cache misses: the work of the model evicts the instructions and data of the hooks."
    )


def allowed(taken: dict[tuple[str, str], Times]) -> str:
    """What the share of time is that the demo pays for being watched."""
    step = statistics.mean(taken[USUAL, DEMO.name]["step"])
    return (
        f"A step of the demo takes {step / 1e3:.0f} ms, so its share is "
        f"{shown(OVERHEAD_SHARE * step / DEMO.k)} us per micro-batch: the longer the steps, the "
        "more of them are recorded. The rest is the cost of skipped steps, and of the burst that "
        "comes every half a minute at any cost."
    )


def measure_all(options: Options) -> Report:
    """Measure everything."""
    taken, failed = run_all(options)
    report = Report(
        f"CPU time added to the training thread per step, K = {K}", "python bench/step_cost.py"
    )
    for (name, size), times in taken.items():
        report.measures += lines(name, size, times)
    steps = [f"{statistics.median(taken[HOOKS, s]['without']) / 1e3:.1f} ms ({s})" for s in WATCHED]
    report.notes.append(
        f"Without hooks, a step takes {' and '.join(steps)} of the thread's CPU time."
    )
    report.notes.append(bound(taken))
    report.notes.append(
        f"Default overhead is the mean over {LONG_STEPS[GPT.name]:,} steps after the first "
        f"{2 * FIRST_STEPS}; for the demo, whose steps have {DEMO.k} micro-batches, over "
        f"{LONG_STEPS[DEMO.name]:,}. The hooks sample such short steps: they record {BURST} "
        "consecutive steps and skip the next ones, so that recording takes about "
        f"{OVERHEAD_SHARE:.2%} of the thread's time. A skipped step costs a few microseconds. "
        '`gradledger check` and `overhead="full"` record every step.'
    )
    report.notes.append(allowed(taken))
    report.notes += [f"{name} could not be measured: {why}" for name, why in failed.items()]
    return report


def main() -> None:
    """The command."""
    parser = arguments(__doc__)
    parser.add_argument("--peers", default=sys.executable, help="the Python that has the peers")
    parser.add_argument("--rounds", type=int, default=30, help="of blocks, in each process")
    parser.add_argument("--way", help=argparse.SUPPRESS)
    parser.add_argument("--size", default=GPT.name, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.way:
        torch.set_num_threads(1)
        size = SIZES[options.size]
        times = usual(size) if options.way == USUAL else measure(options.way, size, options.rounds)
        print(json.dumps(times), flush=True)
        return
    publish(measure_all(Options(options.rounds, os.path.abspath(options.peers))), options.json)


if __name__ == "__main__":
    main()
