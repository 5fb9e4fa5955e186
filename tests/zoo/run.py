"""Runs the compatibility zoo: unusual programs, each without the hooks and with them.

    python -m zoo.run [--only TEXT] [--python PYTHON] [--jobs 2] [--programs FOLDER]

Run from ``tests/``. Prints one line for each program and surroundings; the exit status is 1 when
any program behaves differently with the hooks. ``--python`` is the interpreter under test, with
any version of torch; gradledger need not be installed there. Where this command's own interpreter
has the monitor, a real service receives the records, else there is none.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from queue import Queue

from zoo import comparing
from zoo.catalogue import PROGRAMS, Program, programs
from zoo.processes import ForkServer, Outcome, clean_environment, hooked_environment, run_cold
from zoo.surroundings import Surroundings, recorded_steps, surroundings

REPEATS = 2  # of both variants, if only time or memory differ
RECORDED_SHARE = 0.5  # minimum share of programs with records: else the hooks did not run


@dataclass
class Trial:
    """One program in one surrounding, compared with and without the hooks."""

    program: Program
    surroundings: str
    without: list[Outcome] = field(default_factory=list)
    hooked: list[Outcome] = field(default_factory=list)
    differences: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The program's name, with the surroundings if it runs in several."""
        several = len(self.program.surroundings) > 1
        return f"{self.program.name} [{self.surroundings}]" if several else self.program.name

    @property
    def project(self) -> str:
        """The project of its records."""
        return f"{self.program.name} {self.surroundings}"


class Runner:
    """Runs programs one after the other with a separate fork server."""

    def __init__(self, python: str, folder: Path, around: Surroundings) -> None:
        self._python, self._folder, self._around = python, folder, around
        self._server = ForkServer(python)

    def trials(self, program: Program) -> list[Trial]:
        """Run the program in each of its surroundings, and once without the hooks."""
        without = self._run(program, None)
        if without.status != program.status:  # gloo sometimes aborts at the end of a process
            without = self._run(program, None)
        return [self._trial(program, kind, without) for kind in program.surroundings]

    def close(self) -> None:
        """End the fork server."""
        self._server.close()

    def _trial(self, program: Program, kind: str, without: Outcome) -> Trial:
        trial = Trial(program, kind, [without])
        for _ in range(program.tries):
            trial.hooked.append(self._run(program, kind))
            if comparing.behaviour(without, trial.hooked[-1]):
                break
        if without.status != program.status or not (without.stdout or program.shell):
            trial.differences = [_broken(program, without)]
            return trial
        for _ in range(REPEATS):
            if comparing.behaviour(trial.without[-1], trial.hooked[-1]) or not comparing.cost(
                trial.without, trial.hooked
            ):
                break
            trial.without.append(self._run(program, None))
            trial.hooked.append(self._run(program, kind))
        slowness = comparing.slowness() if comparing.cost(trial.without, trial.hooked) else 1.0
        trial.differences = comparing.differences(trial.without, trial.hooked, slowness)
        if trial.differences:
            trial.differences += self._own_differences(program, without)
        return trial

    def _own_differences(self, program: Program, without: Outcome) -> list[str]:
        """Differences between two runs without the hooks: an error in the zoo."""
        again = self._run(program, None)
        return [
            f"the program itself is not deterministic: {difference}"
            for difference in comparing.behaviour(without, again)
        ]

    def _run(self, program: Program, kind: str | None) -> Outcome:
        """Run it in separate folders, of which only the spool is kept."""
        folder = self._folder / program.path.parent.name / program.path.stem
        for name in ("work", "home", "tmp"):
            shutil.rmtree(folder / name, ignore_errors=True)
            (folder / name).mkdir(parents=True)
        env = {**clean_environment(), "HOME": str(folder / "home"), "TMPDIR": str(folder / "tmp")}
        if kind is not None:
            project = Trial(program, kind).project
            spool = self._spool(program, kind)
            env = hooked_environment(program, env, self._around.url(kind), project, spool)
        if program.cold:
            return run_cold(self._python, program, folder, env)
        return self._server.run(program, folder, env, hooks=kind is not None)

    def _spool(self, program: Program, kind: str) -> Path:
        return self._folder / program.path.parent.name / program.path.stem / f"spool-{kind}"


def _broken(program: Program, without: Outcome) -> str:
    last = without.stderr.strip().splitlines()[-1:] or ["nothing on standard error"]
    printed = "" if without.stdout else ", and prints nothing"
    return (
        f"the program itself ends with status {without.status} instead of {program.status}"
        f"{printed}: {last[0]}"
    )


def run_all(
    chosen: list[Program], python: str, jobs: int, folder: Path, around: Surroundings
) -> list[Trial]:
    """Run all trials and print each when it ends."""
    runners: Queue[Runner] = Queue()
    for _ in range(jobs):
        runners.put(Runner(python, folder, around))

    def one(program: Program) -> list[Trial]:
        runner = runners.get()
        try:
            return runner.trials(program)
        finally:
            runners.put(runner)

    done = []
    with ThreadPoolExecutor(jobs) as pool:
        for trials in pool.map(one, chosen):
            done.extend(trials)
            for trial in trials:
                print("\n".join(_lines(trial)), flush=True)
    while not runners.empty():
        runners.get().close()
    return done


def _lines(trial: Trial) -> list[str]:
    later = comparing.seconds(trial.hooked) - comparing.seconds(trial.without)
    more = (comparing.peak(trial.hooked) - comparing.peak(trial.without)) / 1024
    outcome = "FAILED" if trial.differences else "ok    "
    runs = f"  ({len(trial.hooked)} runs)" if len(trial.hooked) > 1 else ""
    head = f"{outcome} {trial.name:<52} {later:+6.2f} s {more:+6.1f} MiB{runs}"
    own = [f"    reports: {line}" for line in _own_faults(trial)]
    return [head, *[f"    {difference}" for difference in trial.differences], *own]


def _own_faults(trial: Trial) -> list[str]:
    """Messages about a failure of the hooks, after which training continued."""
    lines = [line for outcome in trial.hooked for line in comparing.own_lines(outcome.stderr)]
    return sorted({line for line in lines if " failed and is " in line or "not started" in line})


def _unrecorded(trials: list[Trial], folder: Path, around: Surroundings) -> list[Trial]:
    """Trials without a recorded optimizer step."""
    url = around.url("service")
    return [
        trial
        for trial in trials
        if not recorded_steps(
            url,
            trial.project,
            folder
            / trial.program.path.parent.name
            / trial.program.path.stem
            / f"spool-{trial.surroundings}",
        )
    ]


def _summary(trials: list[Trial], unrecorded: list[Trial], whole: bool, seconds: float) -> int:
    failed = [trial for trial in trials if trial.differences]
    faults = [trial for trial in trials if _own_faults(trial)]
    print()
    print(f"nothing recorded ({len(unrecorded)}): {', '.join(t.name for t in unrecorded) or '-'}")
    print(f"failures of the hooks ({len(faults)}): {', '.join(t.name for t in faults) or '-'}")
    if failed:
        print(f"failed ({len(failed)}): {', '.join(trial.name for trial in failed)}")
    vacuous = whole and len(unrecorded) > (1 - RECORDED_SHARE) * len(trials)
    if vacuous:
        print("too few programs were recorded: this run does not test the hooks")
    counts = f"{len(trials) - len(failed)} passed, {len(failed)} failed"
    print(f"==== {counts} in {seconds:.0f} s ====")
    return 1 if failed or vacuous else 0


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--only", default="", help="programs whose folder/name contains this")
    parser.add_argument("--python", default=sys.executable, help="the interpreter under test")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--programs", type=Path, default=PROGRAMS, help="a folder of folders")
    options = parser.parse_args()
    chosen = programs(options.only, options.programs)
    if not chosen:
        parser.error(f"--only {options.only!r} matches no program")
    began = time.monotonic()
    with (
        tempfile.TemporaryDirectory(prefix="zoo-", ignore_cleanup_errors=True) as name,
        surroundings(Path(name)) as around,
    ):
        folder = Path(name)
        trials = run_all(chosen, options.python, options.jobs, folder, around)
        unrecorded = _unrecorded(trials, folder, around)
    return _summary(trials, unrecorded, not options.only, time.monotonic() - began)


if __name__ == "__main__":
    sys.exit(main())
