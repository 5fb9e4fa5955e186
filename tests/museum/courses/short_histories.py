"""How often the rules about norm and loss report a healthy run: where their limits come from.

    python -m museum.courses.short_histories [--runs 2000] [--steps 60] [--trained 200]
                                             [--seed 0] [--write ../docs/detection.md]

Run from ``tests/``. The wanted rates of false alarms are at most 1 in 200 healthy runs of 60 steps
and 1 in 100 of 10,000 steps (``--runs 1000 --steps 10000 --trained 0``). ``--seed`` is the number
of the first run: no limit was chosen by runs from 20,000 on. ``--write`` replaces the chapter on
this number of steps. Two kinds of runs are evaluated by the rules themselves:

- drawn ones: norm and loss are lognormal around a level that falls, are correlated over time, share
  their outliers, and have tails of Student's t (3 to 30 degrees of freedom in the logarithm, so
  heavier than a power law), with deviations that cover what ``trained`` runs show;
- trained ones: the settings of ``museum.courses.settings``, without the hooks.

For each history of n steps, the output has the largest factor by which a norm was above
all before it, among jumps whose loss was above ``short_loss`` times all before it, too.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from gradledger import records
from gradledger.delivery.encoding import encode
from gradledger_monitor.ingest import schema
from gradledger_monitor.model.step_facts import RunInfo, merge
from gradledger_monitor.rules.loss.diverging import Diverging
from gradledger_monitor.rules.norm.exploding import Exploding
from gradledger_monitor.rules.norm.spike import LEAST_LOSS, Spike
from gradledger_monitor.rules.norm.vanishing import Vanishing
from gradledger_monitor.rules.rule import Rule, Window
from museum.courses.settings import draw
from museum.courses.training import train
from museum.evaluation import LOUD
from museum.tables import replace_chapter
from oracle.report import wilson

Series = list[tuple[float, float]]  # norm and loss of each step
HISTORIES = (8, 12, 16, 24, 32, 48)
LONGEST_TRAINED = 2000  # steps
INFO = RunInfo("run", "run", optimizers=["SGD"])
RULES: tuple[type[Rule], ...] = (Spike, Exploding, Vanishing, Diverging)


def drawn(seed: int, steps: int) -> Series:
    """A healthy run as random numbers: a falling level, correlated noise, common outliers."""
    pick = random.Random(seed)
    spread, memory = pick.uniform(0.05, 0.6), pick.uniform(0.0, 0.9)
    freedom, shared = pick.uniform(3, 30), pick.uniform(0, 1)
    loss, norm, fall = pick.uniform(0.1, 10), pick.uniform(0.1, 10), pick.uniform(0, 2)
    series, state = [], 0.0
    for step in range(steps):
        common = _student(pick, freedom)
        state = memory * state + math.sqrt(1 - memory**2) * common
        level = math.exp(-fall * min(1.0, step / 200))
        noise = shared * state + (1 - shared) * pick.gauss(0, 1)
        series.append((norm * math.exp(spread * state), loss * level * math.exp(spread * noise)))
    return series


def _student(pick: random.Random, freedom: float) -> float:
    """Student's t."""
    return pick.gauss(0, 1) / math.sqrt(pick.gammavariate(freedom / 2, 2 / freedom))


def trained(seed: int, steps: int) -> Series:
    """A healthy run of a drawn setting: the norm and the loss that each step applied."""
    series: Series = []

    train(draw(seed, steps), watch=lambda norm, loss: series.append((norm, loss)))
    return series


def reported_by(series: Series) -> set[str]:
    """The rules that report a step, by more than information."""
    rules, reported = [rule() for rule in RULES], set()
    micro_batch = records.MicroBatch(1, loss=1.0, fresh=True)
    sent = records.StepRecord(0, 1, 1.0, [micro_batch], norm=1.0)
    decoded = schema.decoder.decode(encode(sent))
    assert isinstance(decoded, schema.StepRecord)
    facts = merge(INFO, 0, 1, {0: decoded})  # of each step: all that differs is set below
    series = [pair for pair in series if math.isfinite(pair[0])]
    for facts.step, (facts.norm, facts.loss_reported) in enumerate(series, 1):
        window = Window(facts)
        outcomes = {r.id(): r.evaluate(window) for r in rules}
        reported |= {
            name
            for name, each in outcomes.items()
            if each.severity in LOUD and each.status == "finding"
        }
    return reported


def farthest_jumps(series: Series) -> Iterator[tuple[int, float]]:
    """Of each history length: how far the norm was above all before, where the loss was, too."""
    most_norm = most_loss = 0.0
    finite = [pair for pair in series if math.isfinite(pair[0])]  # skipped steps have no norm
    for count, (norm, loss) in enumerate(finite[: int(Spike().needed)]):
        if count >= Spike().short and loss > Spike().short_loss * max(LEAST_LOSS, most_loss):
            yield count, norm / most_norm
        most_norm, most_loss = max(most_norm, norm), max(most_loss, loss)


def study(kind: str, run: Callable[[int, int], Series], seeds: range, steps: int) -> Iterator[str]:
    """Lines of text: the share of runs that are reported, and the farthest jumps by history."""
    farthest, reported, by = dict.fromkeys(HISTORIES, 0.0), 0, Counter[str]()
    for seed in seeds:
        series = run(seed, steps)
        jumps = list(farthest_jumps(series))
        for count, factor in jumps:
            history = max((h for h in HISTORIES if h <= count), default=HISTORIES[0])
            farthest[history] = max(farthest[history], factor)
        rules = reported_by(series)
        if rules:
            sys.stderr.write(f"{kind} {seed}: {', '.join(sorted(rules))}\n")
        by.update(rules)
        reported += bool(rules)
    low, high = wilson(reported, len(seeds))
    yield (
        f"- {kind}: **{reported} of {len(seeds):,} runs of {steps:,} steps are reported "
        f"({reported / max(1, len(seeds)):.2%}; 95% Wilson interval {low:.2%} to {high:.2%})**"
    )
    yield from (f"    - `{rule}`: {count}" for rule, count in by.most_common())
    for history, factor in farthest.items():
        limit = Spike().short_norm * math.sqrt(Spike().needed / history)
        yield f"    - from {history} steps: farthest {factor:.1f}x, limit {limit:.1f}x"


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=2000)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--trained", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0, help="number of the first run")
    parser.add_argument("--write", type=Path, help="replace the chapter in this file")
    options = parser.parse_args()
    runs, steps, trained_runs = options.runs, options.steps, options.trained
    numbers = f"--runs {runs} --steps {steps} --trained {trained_runs} --seed {options.seed}"
    chapter = [
        f"## Drawn histories of {steps:,} steps",
        "",
        f"Written by `python -m museum.courses.short_histories {numbers} --write "
        "../docs/detection.md`: norms and losses of healthy runs,",
        "evaluated by " + ", ".join(f"`{rule().id()}`" for rule in RULES) + ". Reported is a "
        "warning or an error. Drawn runs have",
        "lognormal norms with correlated noise and tails of Student's t.",
        "",
    ]
    first = options.seed
    chapter += study("drawn", drawn, range(first, first + runs), steps)
    if trained_runs:
        longest = min(steps, LONGEST_TRAINED)
        chapter += study("trained", trained, range(first, first + trained_runs), longest)
    text = "\n".join([*chapter, ""])
    sys.stdout.write(text)
    if options.write:
        options.write.write_text(replace_chapter(options.write.read_text(), text))


if __name__ == "__main__":
    main()
