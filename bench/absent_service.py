"""The time of a training step while the service hangs, refuses or is down.

Trains blocks of the same steps in alternation: without hooks, and with hooks and a service that
accepts everything, that answers 503, that never answers, or that is down. Unsent records go to the
spool. The times with hooks must not differ by more than their interquartile ranges; other processes
affect the wall-clock time, too.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Sequence

from report import Measure, Report, arguments, median_of, publish
from services import service
from training import GPT, Loop

import gradledger

STEPS = 20  # in a block
WARM_UP = 4  # of each
ABSENT = ("refuses", "hangs", "is down")
WAYS = ("without hooks", "accepts", *ABSENT)

Times = dict[str, tuple[list[float], list[float]]]  # milliseconds: processor, clock


def train(loop: Loop, busy: list[float], clock: list[float]) -> None:
    """A block of steps; the first ones are not noted."""
    for number in range(STEPS):
        window = loop.window()
        began = time.thread_time(), time.perf_counter()
        loop.step(window)
        if number >= WARM_UP:
            busy.append((time.thread_time() - began[0]) * 1e3)
            clock.append((time.perf_counter() - began[1]) * 1e3)


def block(way: str, busy: list[float], clock: list[float]) -> None:
    """One block of one way."""
    loop = Loop(GPT)
    if way == "without hooks":
        train(loop, busy, clock)
        return
    with (
        service(way) as url,
        gradledger.watch(loop.model, loop.optimizers[0], url=url, overhead="full"),
    ):
        train(loop, busy, clock)


def measure(rounds: int) -> Times:
    """Measure in turn, so that whatever else the machine does hits all ways alike."""
    taken: Times = {way: ([], []) for way in WAYS}
    with tempfile.TemporaryDirectory() as spool:
        os.environ["GRADLEDGER_SPOOL"] = spool
        for number in range(rounds):
            for way in WAYS[number % len(WAYS) :] + WAYS[: number % len(WAYS)]:
                block(way, *taken[way])
    return taken


def as_with_one_that_takes(way: str, busy: Sequence[float], takes: Sequence[float]) -> Measure:
    """A service that is away must not make a step longer than one that is there."""
    high = statistics.quantiles(takes, n=4)[2]
    thread = median_of(f"the service {way}: thread CPU", busy, "ms")
    goal = f"at most {high:.1f} ms"
    return Measure(
        thread.name,
        thread.value,
        thread.unit,
        thread.low,
        thread.high,
        goal=goal,
        holds=thread.value <= high,
    )


def main() -> None:
    """The command."""
    parser = arguments(__doc__)
    parser.add_argument("--rounds", type=int, default=6)
    options = parser.parse_args()
    taken = measure(options.rounds)
    report = Report("A step while the service is unavailable", "python bench/absent_service.py")
    for way, (busy, clock) in taken.items():
        named = way if way == "without hooks" else f"the service {way}"
        thread = median_of(f"{named}: thread CPU", busy, "ms")
        if way in ABSENT:
            thread = as_with_one_that_takes(way, busy, taken["accepts"][0])
        report.measures += [thread, median_of(f"{named}: wall clock", clock, "ms")]
    report.notes.append("The goal is the upper quartile with a service that accepts everything.")
    publish(report, options.json)


if __name__ == "__main__":
    main()
