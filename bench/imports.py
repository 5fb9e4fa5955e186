"""What importing the hooks adds to a process that has PyTorch, compared with the peers.

Each import happens in a new process that has imported torch, with compiled bytecode; packages
alternate. Time is CPU time of all threads; memory is the growth of the process. The hooks are
measured twice: the import statement alone, and with everything that ``watch`` loads later.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

from report import Measure, Report, arguments, below, median_of, publish

HOOKS = ("gradledger", "gradledger and everything that watch needs")
STATEMENTS = {
    HOOKS[0]: "import gradledger",
    HOOKS[1]: "from gradledger import watch",
    "TensorBoard": "from torch.utils.tensorboard import SummaryWriter",
    "trackio": "import trackio",
    "W&B": "import wandb",
    "Aim": "import aim",
    "MLflow": "import mlflow",
}
GOAL_MS, GOAL_MB = 10.0, 1.0
CHILD = """
import json, sys, time
import torch
def held():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096
before, began = held(), time.process_time()
exec(sys.argv[1])
took = time.process_time() - began
print(json.dumps([took * 1e3, (held() - before) / 1e6]))
"""

PARTS = """
import dataclasses, json, sys, time
import torch
from importlib import _bootstrap_external as loading
spent = {}
def clocked(name, work):
    def timed(*args, **kwargs):
        began = time.process_time()
        try:
            return work(*args, **kwargs)
        finally:
            spent[name] = spent.get(name, 0) + (time.process_time() - began) * 1e3
    return timed
before = len(sys.modules)
loading._compile_bytecode = clocked("reading code", loading._compile_bytecode)
dataclasses._process_class = clocked("creating dataclasses", dataclasses._process_class)
exec(sys.argv[1])
print(json.dumps([len(sys.modules) - before, spent]))
"""


def what_it_consists_of() -> str:
    """Of the import of everything that watch needs."""
    command = [sys.executable, "-c", PARTS, STATEMENTS[HOOKS[1]]]
    done = subprocess.run(command, env=compiled(), capture_output=True, text=True, check=True)
    modules, spent = json.loads(done.stdout.splitlines()[-1])
    parts = " and ".join(f"{took:.1f} ms were spent {name}" for name, took in spent.items())
    return f"`watch` needs {modules} modules. In one import, {parts}."


def compiled() -> dict[str, str]:
    """An environment in which Python keeps what it compiles, as it does for users."""
    return {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}


def once(python: str, statement: str) -> tuple[float, float] | str:
    """Milliseconds and megabytes of one import, or why there is none."""
    command = [python, "-c", CHILD, statement]
    done = subprocess.run(command, env=compiled(), capture_output=True, text=True, check=False)
    if done.returncode:
        return done.stderr.strip().splitlines()[-1]
    milliseconds, megabytes = json.loads(done.stdout.splitlines()[-1])
    return milliseconds, megabytes


def main() -> None:
    """The command."""
    parser = arguments(__doc__)
    parser.add_argument("--peers", default=sys.executable, help="the Python that has the peers")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    taken: dict[str, list[tuple[float, float]]] = {}
    report = Report("Import time and memory, in addition to PyTorch", "python bench/imports.py")
    for number in range(options.rounds + 1):
        for name, statement in STATEMENTS.items():
            result = once(options.peers, statement)
            if isinstance(result, str):
                report.notes += [f"{name} could not be imported: {result}"] if not number else []
            elif number:  # the first one reads files that no cache holds
                taken.setdefault(name, []).append(result)
    for name, times in taken.items():
        report.measures += rows(name, times)
    report.notes.append(what_it_consists_of())
    publish(report, options.json)


def rows(name: str, times: list[tuple[float, float]]) -> list[Measure]:
    """Time and memory of one package."""
    milliseconds, megabytes = zip(*times, strict=True)
    took = median_of(f"importing {name}: time", milliseconds, "ms")
    held = median_of(f"importing {name}: memory", megabytes, "MB")
    ours = name in HOOKS
    return [below(took, GOAL_MS if ours else None), below(held, GOAL_MB if ours else None)]


if __name__ == "__main__":
    main()
