"""What importing the hooks adds to a process that has PyTorch, beside importing the peers.

Each import happens in a fresh process that imported torch before; all take turns. The hooks are
imported with everything that ``gradledger.watch`` needs, all of it compiled before. Memory is
what the process holds more.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

from report import Measure, Report, arguments, below, median_of, tell

HOOKS = "gradledger"
STATEMENTS = {
    HOOKS: "from gradledger import watch",
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
before, began = held(), time.perf_counter()
exec(sys.argv[1])
took = time.perf_counter() - began
print(json.dumps([took * 1e3, (held() - before) / 1e6]))
"""


def once(python: str, statement: str) -> tuple[float, float] | str:
    """Milliseconds and megabytes of one import, or why there is none."""
    command = [python, "-c", CHILD, statement]
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        return done.stderr.strip().splitlines()[-1]
    milliseconds, megabytes = json.loads(done.stdout.splitlines()[-1])
    return milliseconds, megabytes


def main() -> None:
    """The command."""
    parser = arguments(__doc__)
    parser.add_argument("--peers", default=sys.executable, help="the Python that has the peers")
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    taken: dict[str, list[tuple[float, float]]] = {}
    made = Report("Import, beside PyTorch", "python bench/imports.py")
    for number in range(asked.rounds + 1):
        for name, statement in STATEMENTS.items():
            found = once(asked.peers, statement)
            if isinstance(found, str):
                made.notes += [f"{name} could not be imported: {found}"] if not number else []
            elif number:  # the first one reads files that no cache holds
                taken.setdefault(name, []).append(found)
    for name, times in taken.items():
        made.measures += rows(name, times)
    tell(made, asked.json)


def rows(name: str, times: list[tuple[float, float]]) -> list[Measure]:
    """Time and memory of one package."""
    milliseconds, megabytes = zip(*times, strict=True)
    took = median_of(f"importing {name}: time", milliseconds, "ms")
    held = median_of(f"importing {name}: memory", megabytes, "MB")
    ours = name == HOOKS
    return [below(took, GOAL_MS if ours else None), below(held, GOAL_MB if ours else None)]


if __name__ == "__main__":
    main()
