"""How often healthy runs are alarmed, and how many faults are found: a table and its command.

    python -m museum.courses.measure [--healthy 200] [--each 20] [--jobs 2] [--in-part]
                                     [--kept FILE] [--write ../docs/detection.md]

Run from ``tests/``. ``--write`` replaces the last chapter. ``--kept`` holds the runs that are done,
so that an interrupted measurement goes on; remove the file once a rule has changed.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from gradledger.capture.open_records import OpenStep
from gradledger.capture.recorder import Recorder
from gradledger.capture.step_sampling import StepSampler
from gradledger.delivery.encoding import encode
from gradledger_monitor.evaluation.run_state import RunState
from gradledger_monitor.ingest import schema
from gradledger_monitor.model.step_facts import RunInfo, merge
from museum.courses.faults import ILLNESSES, onset
from museum.courses.settings import Setting, draw
from museum.courses.training import Course, Fault, healthy, train
from museum.evaluation import LOUD
from museum.tables import CHAPTER, replace_chapter
from oracle.report import wilson

COMMAND = "python -m museum.courses.measure --write ../docs/detection.md"
Task = tuple[int, int | None]  # the number of a setting, and which illness it gets
# Steps of healthy runs, by number: checks before a run, short runs, long ones.
LENGTHS = (60, 300, 60, 300, 2000)
SICK = 100_000  # numbers of settings that get a fault begin here


@dataclass(frozen=True)
class Outcome:
    """One run, judged: rule -> first step, by whether it alarms."""

    setting: Setting
    illness: int | None
    loud: dict[str, int]
    quiet: dict[str, int]


def judged(task: Task, in_part: bool = False) -> Outcome:
    """Train one run, healthy or with a fault, and judge it."""
    seed, illness = task
    # after the first 256 steps 16 of every 128, whatever they cost
    step_sampler = StepSampler(1e-12, longest_period=128) if in_part else None
    if illness is None:
        return evaluate_history(_healthy_setting(seed), step_sampler=step_sampler)
    kind = ILLNESSES[illness]
    found = evaluate_history(kind.setting(seed), kind.fault(onset(seed)), step_sampler)
    return replace(found, illness=illness)


def _healthy_setting(seed: int) -> Setting:
    return draw(seed, LENGTHS[seed % len(LENGTHS)])


def evaluate_history(
    setting: Setting, fault: Fault = healthy, step_sampler: StepSampler | None = None
) -> Outcome:
    """Train under the hooks and ask all rules."""
    steps: list[OpenStep] = []
    recorder = Recorder(steps.append, step_sampler)
    recorder.install()
    try:
        course = train(setting, fault)
        recorder.finish()
    finally:
        recorder.uninstall()
    loud, quiet = _findings(course, steps, recorder.windows.names)
    return Outcome(setting, None, loud, quiet)


def _findings(
    course: Course, steps: list[OpenStep], names: list[str]
) -> tuple[dict[str, int], dict[str, int]]:
    info = RunInfo("run", "run", 1, optimizers=names)
    state = RunState(info)
    for step in steps:
        record = schema.decoder.decode(encode(step.resolve()))
        assert isinstance(record, schema.StepRecord)
        state.add_facts(merge(info, record.optimizer, record.step, {0: record}))
    state.set_eval_metrics({"eval_loss": course.evaluations})
    causes = [f for f in state.result().findings if f.inhibited_by is None]
    loud = {f.rule: f.first_step for f in causes if f.severity in LOUD}
    return loud, {f.rule: f.first_step for f in causes if f.severity not in LOUD}


def measured(
    healthy: int, each: int, jobs: int, kept: Path | None, in_part: bool
) -> Iterator[Outcome]:
    """All runs, those done before first, the others as they come."""
    tasks: list[Task] = [(seed, None) for seed in range(healthy)]
    tasks += [(SICK + n, at) for at in range(len(ILLNESSES)) for n in range(each)]
    done = {task: one for task, one in _done(kept) if task in tasks}
    yield from done.values()
    todo = [task for task in tasks if task not in done]
    with multiprocessing.get_context("spawn").Pool(jobs, maxtasksperchild=25) as pool:
        for task, one in zip(todo, pool.imap(partial(judged, in_part=in_part), todo), strict=True):
            if kept is not None:
                with kept.open("a") as lines:
                    lines.write(json.dumps([*task, one.loud, one.quiet]) + "\n")
            yield one


def _done(kept: Path | None) -> Iterator[tuple[Task, Outcome]]:
    if kept is not None and kept.exists():
        for seed, at, loud, quiet in map(json.loads, kept.read_text().splitlines()):
            setting = _healthy_setting(seed) if at is None else ILLNESSES[at].setting(seed)
            yield (seed, at), Outcome(setting, at, loud, quiet)


# ---------------------------------------------------------------- what is told


def chapter(outcomes: list[Outcome], command: str) -> str:
    """The last chapter of docs/detection.md."""
    healthy = [one for one in outcomes if one.illness is None]
    alarmed = [one for one in healthy if one.loud]
    lines = [
        CHAPTER,
        "",
        f"Written by `{command}`.",
        f"{len(healthy)} healthy runs of 60, 300 and 2000 steps, drawn over tasks, optimizers,",
        "rates, schedules, precisions, batches, clipping and noise",
        "(`tests/museum/courses/settings.py`), judged by all rules:",
        f"**{len(alarmed)} alarmed ({_interval(len(alarmed), len(healthy))})**.",
        "",
        *_by(healthy),
        *_causes(alarmed),
        *_recalls(outcomes),
        "",
    ]
    return "\n".join(lines)


def _interval(alarmed: int, runs: int) -> str:
    """The share of runs that were alarmed, with its 95% Wilson interval."""
    low, high = wilson(alarmed, runs)
    return f"{alarmed / max(1, runs):.1%}; 95% Wilson interval {low:.1%} to {high:.1%}"


def _by(healthy: list[Outcome]) -> Iterator[str]:
    yield from ("| healthy runs | alarmed | of |", "|---|---|---|")
    for name in ("steps", "task", "optimizer", "precision", "schedule"):
        values = sorted({getattr(one.setting, name) for one in healthy})
        for value in values:
            these = [one for one in healthy if getattr(one.setting, name) == value]
            yield f"| {name}: {value} | {sum(bool(o.loud) for o in these)} | {len(these)} |"
    yield ""


def _causes(alarmed: list[Outcome]) -> Iterator[str]:
    counts = Counter(rule for one in alarmed for rule in one.loud)
    for rule, count in counts.most_common():
        seeds = [str(one.setting.seed) for one in alarmed if rule in one.loud]
        yield f"- `{rule}` in {count}: settings {', '.join(seeds)}"
    yield from [""] if counts else []


def _recalls(outcomes: list[Outcome]) -> Iterator[str]:
    shown = sorted({one.illness for one in outcomes if one.illness is not None})
    if not shown:
        yield "Faults in otherwise healthy runs were not measured here (`--each`)."
        return
    yield "| fault in a healthy run | rules that name it | named in time | found at all | runs |"
    yield "|---|---|---|---|---|"
    yield from (_recall(at, outcomes) for at in shown)


def _recall(at: int, outcomes: list[Outcome]) -> str:
    kind, runs = ILLNESSES[at], [one for one in outcomes if one.illness == at]
    rules = (kind.rule, *kind.also)
    in_time = sum(any(_in_time(one, rule, kind.within) for rule in rules) for one in runs)
    found = sum(any(_first(one, rule) for rule in rules) for one in runs)
    what = f"{kind.why}; in {kind.within} steps"
    return f"| {what} | {', '.join(rules)} | {in_time} | {found} | {len(runs)} |"


def _first(one: Outcome, rule: str) -> int | None:
    return (one.loud | one.quiet).get(rule)


def _in_time(one: Outcome, rule: str, within: int) -> bool:
    first = _first(one, rule)
    return first is not None and first <= onset(one.setting.seed) + within


def _line(one: Outcome) -> str:
    """One run, for whoever waits."""
    kind = "healthy" if one.illness is None else ILLNESSES[one.illness].rule
    said = ", ".join(f"{rule} at {step}" for rule, step in (one.loud | one.quiet).items())
    return f"{kind} {one.setting.seed}: {said or 'nothing'}\n"


def main() -> int:
    """The command; exit status 1 when 2 % of healthy runs or more are alarmed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--healthy", type=int, default=200)
    parser.add_argument("--each", type=int, default=20, help="runs for each fault")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--in-part", action="store_true", help="watch some of the steps only")
    parser.add_argument("--kept", type=Path, help="runs that are done; new ones are added")
    parser.add_argument("--write", type=Path, help="replace the chapter in this file")
    asked = parser.parse_args()
    outcomes = []
    for outcome in measured(asked.healthy, asked.each, asked.jobs, asked.kept, asked.in_part):
        outcomes.append(outcome)
        sys.stderr.write(_line(outcome))
    part = " --in-part" if asked.in_part else ""
    told = chapter(outcomes, f"{COMMAND} --healthy {asked.healthy} --each {asked.each}{part}")
    sys.stdout.write(told)
    if asked.write:
        asked.write.write_text(replace_chapter(asked.write.read_text(), told))
    healthy = [one for one in outcomes if one.illness is None]
    return int(sum(bool(one.loud) for one in healthy) >= 0.02 * max(1, len(healthy)))


if __name__ == "__main__":
    sys.exit(main())
