"""The programs of the zoo, and how each is started.

A program is any file under ``programs/``. By default it is forked from an interpreter that has
imported torch, its exit status is 0, and a service runs at the URL of the hooks.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

PROGRAMS = Path(__file__).parent / "programs"

# Programs that are started in a new interpreter, by the beginning of their names, and the reason.
# Each costs two seconds to import torch, twice. All others are forked; they end as an interpreter
# does, too. All that are here end whole interpreters, most of them at the end of the script.
COLD = {
    "distributed/sigterm": "what a fresh interpreter does with a signal is the subject",
    "distributed/torchrun": "ranks are fresh interpreters",
    "environment/address_space": "the limit counts all that the process has mapped",
    "exits/atexit": "what was registered before torch was imported is a part of the subject",
    "exits/daemon": "the end of a whole interpreter is the subject",
    "exits/finalizers": "the end of a whole interpreter is the subject",
    "interpreter/flags": "an option of the interpreter is the subject",
    "interpreter/import_order": "the import of torch is the subject",
    "interpreter/own_sitecustomize": "the start of the interpreter is the subject",
    "interpreter/stderr_closed": "the interpreter starts without a descriptor",
    "interpreter/stdin_closed": "the interpreter starts without a descriptor",
    "interpreter/stdout_closed": "the interpreter starts without a descriptor",
    "processes/exec": "the process becomes a fresh interpreter",
    "processes/forkserver": "children are forks of a fresh interpreter",
    "processes/loader_spawn": "workers are fresh interpreters",
    "processes/spawn": "children are fresh interpreters",
    "processes/subprocess": "children are fresh interpreters",
    "processes/torch": "the import of torch is the subject",
    "signals/dispositions": "the dispositions that a process starts with are the subject",
    "signals/interrupt_default": "how a whole interpreter dies is the subject",
    "threads/torch_imported": "the import of torch is the subject",
}

FLAGS = {
    "interpreter/flags_optimize_twice": ["-OO"],
    "interpreter/flags_strict": ["-X", "dev", "-W", "error"],
    "interpreter/flags_isolated": ["-I"],
    "interpreter/flags_unbuffered": ["-u"],
}

# Beginnings of the names of programs that are run thrice with the hooks, if they are forked: races
# show now and then.
RACES = ("processes/pool", "tensors/fake", "threads/")

# Shell code that starts the interpreter, which is "$@".
SHELL = {
    "interpreter/stdin_closed": 'exec "$@" <&-',
    "interpreter/stdout_closed": 'exec "$@" >&-',
    "interpreter/stderr_closed": 'exec "$@" 2>&-',
    "interpreter/own_sitecustomize": 'PYTHONPATH="$PYTHONPATH:$(dirname "$2")/site" exec "$@"',
}

# Programs that are started once for each rank, with what torchrun sets in the environment.
RANKS = {
    "distributed/data_parallel": 2,
    "distributed/dtensor_two_ranks": 2,
    "distributed/fully_sharded": 2,
    "distributed/rank_killed": 2,
    "distributed/reduced_by_hand": 2,
    "distributed/sharded_optimizer": 2,
    "distributed/uneven_ranks": 2,
}

# Exit statuses other than 0; of a signal, minus its number.
STATUS = {
    "distributed/rank_killed": 9,
    "exceptions/uncaught_in_backward": 1,
    "exceptions/uncaught_in_step": 1,
    "exceptions/system_exit_in_hook": 7,
    "exits/abort": -6,
    "exits/kill_itself": -9,
    "exits/os_exit": 5,
    "exits/own_excepthook": 1,
    "exits/sys_exit_message": 1,
    "exits/sys_exit_status": 3,
    "exits/uncaught_exception": 1,
    "signals/alarm_default": -14,
    "signals/hangup_default": -1,
    "signals/interrupt_default": -2,
    "signals/terminate_default": -15,
    "signals/terminate_during_backward": -15,
    "signals/terminate_saves_checkpoint": 143,
    "signals/user_signal_default": -10,
}

# What else than a service is at the URL, one run each. How a process ends may hang on it.
SURROUNDINGS = {
    "exits/end_of_script": ("service", "dead", "silent", "unresolved"),
    "exits/os_exit": ("service", "dead"),
    "exits/uncaught_exception": ("service", "silent"),
    "signals/terminate_default": ("service", "dead", "silent"),
    "signals/terminate_saves_checkpoint": ("service", "dead", "silent"),
    "memory/many_trials": ("service", "dead"),
}


@dataclass(frozen=True)
class Program:
    """One script and how it is started."""

    path: Path

    @property
    def name(self) -> str:
        """Its folder and name: ``threads/two_threads``."""
        return f"{self.path.parent.name}/{self.path.stem}"

    @property
    def cold(self) -> bool:
        """Whether it is started in a new interpreter."""
        return any(self.name.startswith(start) for start in COLD)

    @property
    def flags(self) -> list[str]:
        """Options of the interpreter."""
        return FLAGS.get(self.name, [])

    @property
    def shell(self) -> str | None:
        """The shell code that starts it."""
        return SHELL.get(self.name)

    @property
    def ranks(self) -> int:
        """The number of ranks; 0 for a program without ranks."""
        return RANKS.get(self.name, 0)

    @property
    def tries(self) -> int:
        """The number of runs with the hooks."""
        return 3 if self.name.startswith(RACES) and not self.cold else 1

    @property
    def status(self) -> int:
        """The expected exit status."""
        return STATUS.get(self.name, 0)

    @property
    def surroundings(self) -> tuple[str, ...]:
        """The surroundings, with one run each."""
        return SURROUNDINGS.get(self.name, ("service",))


def programs(only: str = "", folder: Path = PROGRAMS) -> list[Program]:
    """All programs whose name contains ``only``; cold ones first, because they take longest."""
    listed = [Program(path) for path in sorted(folder.glob("*/*.py"))]
    return sorted((p for p in listed if only in p.name), key=lambda program: not program.cold)
