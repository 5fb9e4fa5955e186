"""Which runs are attempts of one job, from what launchers state in their environments.

A wrong link is worse than none. Job ids that people choose (``--rdzv-id=100``) come again in other
launches, and one launch may train several times in sequence, so neither links runs by itself.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Protocol, TypeVar

# keys in the environment of a run, as the hooks write them
# equal in all restarts of one torchrun and in no other; all that one of its workers starts has it
LAUNCH = "torchrun launch"
RESTARTS = "torchrun restarts"
SLURM_JOB = "SLURM job"
SLURM_RESTARTS = "SLURM restarts"
TRAINING = "training of the process"  # from the second one on


class Attempt(Protocol):
    """What decides whether a run is an attempt."""

    @property
    def id(self) -> str: ...

    @property
    def environment(self) -> dict[str, str]: ...

    @property
    def world_size(self) -> int: ...


T = TypeVar("T", bound=Attempt)


def job_key(name: str, project: str, environment: Mapping[str, str]) -> str | None:
    """A key that all attempts of a job have in common; None of a run that has no launcher.

    Several trainings of one job differ in name or command, and so in this key.
    """
    slurm, launch = environment.get(SLURM_JOB), environment.get(LAUNCH)
    if not (slurm or launch):
        return None
    parts = ["slurm", slurm] if slurm else ["torchrun", launch]
    parts += [environment.get("command", ""), name, project]
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]


def attempts_of(run: str, runs: Sequence[T]) -> list[T]:
    """The attempts of a run's job in order, that run included; empty if there is no other.

    ``runs`` are those with its key, by their start.
    """
    of_id = next((each for each in runs if each.id == run), None)
    if of_id is None or any(TRAINING in each.environment for each in runs):
        return []
    launches_by_start: dict[str, set[str]] = {}
    for each in runs:
        start = each.environment.get(SLURM_RESTARTS, "")
        launches_by_start.setdefault(start, set()).add(_launch(each))
    if any(len(launches) > 1 for launches in launches_by_start.values()):
        runs = [each for each in runs if _launch(each) == _launch(of_id)]
    # one start trains once: others are programs that a worker starts, which inherit its environment
    if len(set(map(_start, runs))) < len(runs):
        return []
    return list(runs) if len(runs) > 1 else []


def restarts_text(environment: Mapping[str, str]) -> str:
    """The restarts that the launchers counted, for people."""
    counts = {"SLURM": environment.get(SLURM_RESTARTS), "torchrun": environment.get(RESTARTS)}
    return ", ".join(f"{launcher} restart {n}" for launcher, n in counts.items() if n)


def _launch(run: Attempt) -> str:
    return run.environment.get(LAUNCH, run.id)


def _start(run: Attempt) -> tuple[str, str | None, str | None, int]:
    """What differs in any two attempts; a change of torchrun's nodes counts as no restart."""
    environment = run.environment
    restarts = environment.get(SLURM_RESTARTS), environment.get(RESTARTS)
    return (_launch(run), *restarts, run.world_size)
