"""How often healthy models of many architectures are reported, and how their gradients fall.

    python -m museum.courses.depth [--runs 510] [--steps 60]

Run from ``tests/``. Every rule is evaluated, and findings of information count, too.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections import Counter
from collections.abc import Iterator

import torch

from gradledger.capture.open_records import OpenStep
from gradledger.capture.recorder import Recorder
from gradledger.delivery.encoding import encode
from gradledger_monitor.evaluation.run_state import RunState
from gradledger_monitor.ingest import schema
from gradledger_monitor.model.findings import EvaluationResult
from gradledger_monitor.model.layers.combined import combined
from gradledger_monitor.model.layers.stacks import fall, stacks
from gradledger_monitor.model.step_facts import RunInfo, StepFacts, merge
from gradledger_monitor.rules.norm.vanishing_by_depth import VanishingByDepth
from museum.courses.architectures import HEALTHY
from oracle.report import wilson


def recorded(seed: int, steps: int) -> list[StepFacts]:
    """The facts of one run."""
    torch.manual_seed(seed)
    closed: list[OpenStep] = []
    recorder = Recorder(closed.append)
    recorder.install()
    try:
        step = HEALTHY[seed % len(HEALTHY)](random.Random(seed))
        for number in range(steps):
            step(number)
        recorder.finish()
    finally:
        recorder.uninstall()
    info = RunInfo("run", "run", 1, optimizers=recorder.windows.names)
    return [_facts(info, each) for each in closed]


def _facts(info: RunInfo, step: OpenStep) -> StepFacts:
    record = schema.decoder.decode(encode(step.resolve()))
    assert isinstance(record, schema.StepRecord)
    return merge(info, record.optimizer, record.step, {0: record})


def evaluated(facts: list[StepFacts]) -> EvaluationResult:
    """What all rules report of it."""
    state = RunState(facts[0].run)
    for step in facts:
        state.add_facts(step)
    return state.result()


def falls(facts: list[StepFacts]) -> Iterator[float]:
    """How far the gradient falls in each stack at each measured step; 1, if it does not."""
    yield 1.0
    for step in facts:
        if step.record.layers is not None:
            of_one_kind = stacks(combined({0: step.record.layers}, False), VanishingByDepth.least)
            yield from (fall(stack) or 1.0 for stack in of_one_kind)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=510)
    parser.add_argument("--steps", type=int, default=60)
    options = parser.parse_args()
    reported, by = 0, Counter[str]()
    farthest: dict[str, float] = {}
    for seed in range(options.runs):
        facts = recorded(seed, options.steps)
        findings = evaluated(facts).findings
        about_layers = [f for f in findings if f.rule in RULES]
        reported += bool(about_layers)
        name = HEALTHY[seed % len(HEALTHY)].__name__
        farthest[name] = min(farthest.get(name, 1.0), *falls(facts))
        for each in findings:
            by[f"{each.severity} {each.rule}, {name}"] += 1
    low, high = wilson(reported, options.runs)
    sys.stdout.write(
        f"{reported} of {options.runs} runs of {options.steps} steps have a finding about layers "
        f"(95% Wilson interval {low:.2%} to {high:.2%})\n"
    )
    for name, count in by.most_common():
        sys.stdout.write(f"  {count} {name}\n")
    sys.stdout.write("gradient RMS of the first layer over that of the last one, at least:\n")
    for name, least in sorted(farthest.items(), key=lambda pair: pair[1]):
        sys.stdout.write(f"  {least:.2g} {name}\n")


RULES = ("norm.dead_layer", "norm.vanishing_by_depth")

if __name__ == "__main__":
    main()
