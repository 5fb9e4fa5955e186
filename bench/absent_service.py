"""What a training step takes while a service hangs, refuses or is not there.

Trains blocks of the same steps, the ways in turn: without hooks, and with them and a service that
takes everything, that answers 503, that accepts and never answers, or that does not exist. What
cannot be sent goes to a spool. The ways with hooks must not differ by more than their middle
halves; of the clock's time other processes lengthen some too.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Sequence

from report import Measure, Report, arguments, median_of, tell
from services import service
from training import GPT, Loop

import gradledger

STEPS = 20  # in a block
WARM_UP = 4  # of each
ABSENT = ("refuses", "hangs", "is not there")
WAYS = ("without hooks", "takes", *ABSENT)

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
    told = median_of(f"the service {way}: thread", busy, "ms")
    goal = f"no more than {high:.1f} ms"
    return Measure(
        told.name, told.value, told.unit, told.low, told.high, goal=goal, holds=told.value <= high
    )


def main() -> None:
    """The command."""
    parser = arguments(__doc__)
    parser.add_argument("--rounds", type=int, default=6)
    asked = parser.parse_args()
    taken = measure(asked.rounds)
    made = Report("A step while the service is away", "python bench/absent_service.py")
    for way, (busy, clock) in taken.items():
        named = way if way == "without hooks" else f"the service {way}"
        thread = median_of(f"{named}: thread", busy, "ms")
        if way in ABSENT:
            thread = as_with_one_that_takes(way, busy, taken["takes"][0])
        made.measures += [thread, median_of(f"{named}: clock", clock, "ms")]
    made.notes.append(
        "The goal is the upper end of the middle half with a service that takes everything."
    )
    tell(made, asked.json)


if __name__ == "__main__":
    main()
