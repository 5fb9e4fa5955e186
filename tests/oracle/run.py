"""Generates programs, runs them with the hooks, and compares every answer with the truth.

    python -m oracle.run [N] [--seed SEED] [--only layout:ddp,loop:tail] [--jobs 2] [--shrink]
                         [--random N] [--script N] [--write docs/detection.md --label STATE]

Run from ``tests/``. The exit status is 1 if an answer to one of the N programs is wrong; those to
``--random`` programs are only listed.
``--script 7`` prints the text of the eighth program.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import secrets
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from gradledger_monitor.model.step_facts import StepFacts
from helpers.device import DEVICE
from helpers.facts import judged
from museum.evaluation import facts_of
from museum.stage import Stage, on_stages
from museum.tables import replace_chapter
from oracle.drawing import draw
from oracle.expectation import Expectation, of_arithmetic, of_mistakes
from oracle.observing import Observed, read
from oracle.outcome import KINDS, WRONG_KINDS, Outcome, outcome
from oracle.program import DIMENSIONS, FRAMEWORKS, Program, is_balanced
from oracle.report import chapter
from oracle.shrinking import shrunk
from oracle.truth import Truth, truth_of
from oracle.writing import script

# What scripts and their truth need.
FRAMEWORK_MODULES = {
    "accelerate": "accelerate",
    "fabric": "lightning.fabric",
    "lightning": "lightning.pytorch",
    "trainer": "transformers.trainer",
    "trl": "trl.trainer.sft_trainer",
}
IMPORTED = (
    "oracle.observing",
    "torch.distributed.fsdp",
    "torch.distributed.pipelining",
    "torch.distributed.tensor.parallel",
    "torch._dynamo.backends.debugging",
    "torch.utils.checkpoint",
)


@dataclass(frozen=True)
class PlayedProgram:
    """A program that ended: what its ranks observed, its truth, and what the hooks recorded."""

    observed: list[Observed]
    truth: Truth
    facts: list[StepFacts]


def play(stage: Stage, program: Program) -> PlayedProgram:
    """Run one program with the hooks. Raises RuntimeError with its output if it fails."""
    with tempfile.TemporaryDirectory(prefix="gl-oracle-") as folder:
        path = Path(folder) / "program.py"
        path.write_text(script(program))
        path.with_suffix(".json").write_text(json.dumps(asdict(program)))
        played = stage.play(path, program.ranks, "truth")
    if played.failed:
        raise RuntimeError(played.printed.strip())
    ranks = [read(recorded) for recorded in played.recorded]
    observed = [each for _, each in ranks]
    truth = truth_of(program, observed)
    return PlayedProgram(observed, truth, facts_of([records for records, _ in ranks]))


def outcome_of(stage: Stage, program: Program) -> Outcome:
    """Run one program and compare."""
    try:
        played = play(stage, program)
    except RuntimeError as error:
        return Outcome(program, "failed", str(error)[-400:], "", ())
    if not played.facts:
        return Outcome(program, "missed", "no step was recorded", "", ())
    expected = _expected(stage, program, played)
    return outcome(program, played.truth, expected, played.facts, judged(played.facts))


def _expected(stage: Stage, program: Program, played: PlayedProgram) -> Expectation:
    """Of a program with several mistakes, what is expected for each alone, united."""
    of_calls = of_mistakes(program, played.truth)
    if not program.mistakes:
        return of_calls | of_arithmetic(program, played.truth)
    if is_balanced(program):
        return of_calls
    alone = replace(program, mistake="none", second_mistake="none")
    return of_calls | of_arithmetic(alone, play(stage, alone).truth)


def outcomes(programs: list[Program], jobs: int, shrink: bool) -> Iterator[tuple[Outcome, Outcome]]:
    """All in order, as they come: the outcome of each, and of its smallest form."""

    def one(stage: Stage, program: Program) -> tuple[Outcome, Outcome]:
        first = outcome_of(stage, program)
        if not shrink or first.kind not in WRONG_KINDS:
            return first, first
        return first, shrunk(first, functools.partial(outcome_of, stage))

    loops = {program.loop.partition("_")[0] for program in programs if program.loop in FRAMEWORKS}
    # some of them start CUDA, which no process may do before it forks
    imported = (FRAMEWORK_MODULES[loop] for loop in sorted(loops) if DEVICE != "cuda")
    yield from on_stages(one, programs, jobs, (*IMPORTED, *imported))


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("programs", type=int, nargs="?", default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--random", type=int, default=0, help="further programs, with a seed that is printed"
    )
    parser.add_argument("--only", default="", help="choices that all programs have")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--shrink", action="store_true", help="show the smallest failing forms")
    parser.add_argument("--script", type=int, help="print the text of this program, and end")
    parser.add_argument("--write", type=Path, help="replace the chapter in this file")
    parser.add_argument(
        "--label", default=time.strftime("%Y-%m-%d"), help="of the state, in the chapter's history"
    )
    options = parser.parse_args()
    try:
        programs = list(itertools.islice(draw(options.seed, options.only), options.programs))
        seed = secrets.randbelow(1 << 31)
        programs += itertools.islice(draw(seed, options.only), options.random)
    except ValueError as error:
        parser.error(str(error))
    if options.script is not None:
        sys.stdout.write(script(programs[options.script]))
        return 0
    if options.random:
        sys.stdout.write(f"programs {options.programs} and later: --seed {seed}\n")
    began, results = time.monotonic(), []
    for number, (result, smallest) in enumerate(outcomes(programs, options.jobs, options.shrink)):
        results.append(result)
        if result.kind in (*WRONG_KINDS, "not_measured"):
            sys.stdout.write(_line(number, smallest))
            sys.stdout.flush()
    rate = len(programs) / (time.monotonic() - began)
    counts: Counter[str] = Counter(result.kind for result in results)
    table = ", ".join(f"{counts[kind]} {kind}" for kind in KINDS)
    sys.stdout.write(f"{len(programs)} programs, {rate:.1f} per second: {table}\n")
    if options.write:
        written = options.write.read_text()
        only = f" ONLY={options.only}" if options.only else ""
        command = f"make oracle N={options.programs} SEED={options.seed}{only} WRITE=1"
        text = chapter(results, command, options.label, written)
        options.write.write_text(replace_chapter(written, text))
    fixed = results[: options.programs]
    return any(result.kind in WRONG_KINDS for result in fixed)


def _line(number: int, result: Outcome) -> str:
    simplest = {name: next(iter(choices)) for name, choices in DIMENSIONS.items()}
    choices = result.program.choices.items()
    differing = ", ".join(f"{k}:{v}" for k, v in choices if v != simplest[k])
    return f"{number} {result.kind}: {result.why}\n    {differing or 'the simplest program'}\n"


if __name__ == "__main__":
    sys.exit(main())
