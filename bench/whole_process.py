"""How much longer a whole process takes for its steps with the hooks than without.

One process trains blocks of steps alternately with the hooks and without. The wall-clock time
includes everything, also the background threads that take the interpreter lock. The CPU time is
that of all threads, until the last record of the block has been sent.

It measures the default overhead, in blocks so long that the hooks record some steps in each, and
the recording of every step, in short blocks.
"""

from __future__ import annotations

import os
import statistics
import time
from dataclasses import replace
from typing import Literal

from report import Measure, Report, arguments, below, median_of, publish, shown
from services import service
from training import GPT, TINY, K, Loop, Size

import gradledger
from gradledger.capture.step_sampling import FIRST_STEPS, OVERHEAD_SHARE

Plan = tuple[Size, int, float | None]  # model, K, goal
Seconds = tuple[float, float, float]  # on the clock, of the processor, of the training thread

BLOCK_SECONDS = 0.3
LONG_SECONDS = 8.0
DRAIN_SECONDS = 0.25  # slightly more than two ticks of the pipeline
PLANS: tuple[Plan, ...] = ((GPT, K, 1.01), (TINY, K, 1.05), (TINY, 1, None))


def block(loop: Loop, steps: int, drain: bool) -> Seconds:
    """What one step takes."""
    windows = [loop.window() for _ in range(steps)]
    clock, busy, thread = time.perf_counter(), time.process_time(), time.thread_time()
    for window in windows:
        loop.step(window)
    took, thread = time.perf_counter() - clock, time.thread_time() - thread
    if drain:
        time.sleep(DRAIN_SECONDS)
    return took / steps, (time.process_time() - busy) / steps, thread / steps


def measure(report: Report, plan: Plan, pairs: int, usual: bool) -> None:
    """Blocks with and without, the order changing."""
    size, k, goal = plan
    loop = Loop(size, k)
    one = block(loop, 20, drain=False)[0]
    steps = max(8, int((LONG_SECONDS if usual else BLOCK_SECONDS) / one))
    times: dict[bool, list[Seconds]] = {True: [], False: []}
    overhead: float | Literal["full"] = OVERHEAD_SHARE if usual else "full"
    with (
        service("accepts") as url,
        gradledger.watch(loop.model, loop.optimizers[0], url=url, overhead=overhead) as ledger,
    ):
        block(loop, 2 * FIRST_STEPS if usual else 2, drain=False)
        for number in range(pairs):
            for hooked in (True, False) if number % 2 else (False, True):
                ledger.resume() if hooked else ledger.pause()
                block(loop, 2, drain=False)
                times[hooked].append(block(loop, steps, drain=hooked))
    add_measures(
        report, f"{one * 1e3:.1f} ms steps, K = {k}", times, goal if usual else None, usual
    )


def add_measures(
    report: Report, plan: str, times: dict[bool, list[Seconds]], goal: float | None, usual: bool
) -> None:
    """The rows of one plan, and what they consist of."""
    prefix = f"{plan}, {'default overhead' if usual else 'every step recorded'}"
    report.measures.append(below(ratio(f"{prefix}: wall clock", times, 0), goal))
    report.measures.append(ratio(f"{prefix}: CPU, all threads", times, 1))
    report.notes.append(f"In {prefix}, {bound(times)}.")


def bound(times: dict[bool, list[Seconds]]) -> str:
    """What the hooks add to a step, by whose time it is."""
    pairs = list(zip(times[True], times[False], strict=True))
    added = [statistics.mean(a[n] - b[n] for a, b in pairs) * 1e6 for n in range(3)]
    clock, everyone, thread = added
    return (
        f"the hooks add {shown(clock)} us of wall-clock time: {shown(thread)} us of CPU time on "
        f"the training thread, and {shown(everyone - thread)} us on the threads that encode "
        "and send"
    )


def ratio(name: str, times: dict[bool, list[Seconds]], which: int) -> Measure:
    """With hooks relative to without, in adjacent pairs; the mean, because the number of recorded
    steps differs between blocks."""
    pairs = zip(times[True], times[False], strict=True)
    ratios = [hooked[which] / plain[which] for hooked, plain in pairs]
    return replace(median_of(name, ratios, "x", "1"), value=statistics.mean(ratios))


def main() -> None:
    """The command."""
    parser = arguments(__doc__)
    parser.add_argument("--pairs", type=int, default=16, help="of short blocks")
    parser.add_argument("--long-pairs", type=int, default=8, help="of long ones")
    options = parser.parse_args()
    os.environ["GRADLEDGER_SPOOL"] = "off"
    report = Report(
        "A whole process with the hooks, relative to one without", "python bench/whole_process.py"
    )
    for plan in PLANS:
        measure(report, plan, options.long_pairs, usual=True)
        measure(report, plan, options.pairs, usual=False)
    report.notes.append("Ratios are means over pairs of blocks, because few steps are recorded.")
    publish(report, options.json)


if __name__ == "__main__":
    main()
