"""How much longer a whole process takes for its steps with the hooks than without.

One process trains blocks of steps in turns, with the hooks and without. The clock's time holds
everything: the background thread that takes the interpreter's lock, too. The processor's time is
that of all threads, until the last record of the block is on its way.
"""

from __future__ import annotations

import os
import statistics
import time

from report import Measure, Report, arguments, below, median_of, tell
from services import service
from training import GPT, TINY, K, Loop, Size

import gradledger

BLOCK_SECONDS = 0.3
DRAIN_SECONDS = 0.25  # a bit more than two ticks of the sender
PLANS = ((GPT, K, 1.01), (TINY, K, 1.05), (TINY, 1, None))


def block(loop: Loop, steps: int, drain: bool) -> tuple[float, float]:
    """Seconds on the clock and of the processor for one step."""
    windows = [loop.window() for _ in range(steps)]
    clock, busy = time.perf_counter(), time.process_time()
    for window in windows:
        loop.step(window)
    took = time.perf_counter() - clock
    if drain:
        time.sleep(DRAIN_SECONDS)
    return took / steps, (time.process_time() - busy) / steps


def measure(size: Size, k: int, goal: float | None, pairs: int) -> list[Measure]:
    """Blocks with and without, the order changing."""
    loop = Loop(size, k)
    steps = max(8, int(BLOCK_SECONDS / block(loop, 20, drain=False)[0]))
    times: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
    with service("takes") as url, gradledger.watch(loop.model, loop.optimizer, url=url) as ledger:
        for number in range(pairs):
            for hooked in (True, False) if number % 2 else (False, True):
                ledger.resume() if hooked else ledger.pause()
                block(loop, 2, drain=False)
                times[hooked].append(block(loop, steps, drain=hooked))
    clock = [seconds for seconds, _ in times[False]]
    named = f"{statistics.median(clock) * 1e3:.1f} ms steps, K = {k}"
    return [
        below(ratio(f"{named}: clock", times, 0), goal),
        ratio(f"{named}: processor, all threads", times, 1),
    ]


def ratio(name: str, times: dict[bool, list[tuple[float, float]]], which: int) -> Measure:
    """With over without, in pairs of neighbours."""
    pairs = zip(times[True], times[False], strict=True)
    return median_of(name, [hooked[which] / plain[which] for hooked, plain in pairs], "x", "1")


def main() -> None:
    """The command."""
    parser = arguments(__doc__)
    parser.add_argument("--pairs", type=int, default=24)
    asked = parser.parse_args()
    os.environ["GRADLEDGER_SPOOL"] = "off"
    made = Report(
        "A whole process with the hooks, over one without", "python bench/whole_process.py"
    )
    for size, k, goal in PLANS:
        made.measures += measure(size, k, goal, asked.pairs)
    tell(made, asked.json)


if __name__ == "__main__":
    main()
