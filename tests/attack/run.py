"""Run all attacks and print one table; status 1 if anything was lost, doubled, broken or hung.

    cd tests && ../.venv/bin/python -m attack.run --seconds 60 [--only bombs --only faults]

Everything is on this machine's loopback addresses, bounded in count and time, and ends the
processes that it started.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TextIO

from attack import (
    addresses,
    bombs,
    crowd,
    documented,
    faults,
    hostile_names,
    slowloris,
)
from attack.arena import Arena
from attack.outcome import Outcome, table
from helpers.postgres import running_postgres

ATTACKS: dict[str, Callable[[Arena], Iterator[Outcome]]] = {
    "documented": documented.attack,
    "bombs": bombs.attack,
    "slowloris": slowloris.attack,
    "crowd": crowd.attack,
    "faults": faults.attack,
    "names": hostile_names.attack,
    "addresses": addresses.attack,
}


def main() -> int:
    """Run the attacks that the command line names."""
    parser = argparse.ArgumentParser(prog="attack.run", description="Attack the service.")
    parser.add_argument("--seconds", type=float, default=60.0, help="length of the longest ones")
    parser.add_argument("--only", action="append", choices=ATTACKS, help="one attack; repeatable")
    options = parser.parse_args()
    outcomes: list[Outcome] = []
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="gl-attack-") as folder, running_postgres() as postgres:
        arena = Arena(Path(folder), postgres, options.seconds)
        for name in options.only or ATTACKS:
            for outcome in ATTACKS[name](arena):
                outcomes.append(outcome)
                state = "FAILED" if outcome.failed else "ok"
                _print(f"{time.monotonic() - began:5.0f} s  {outcome.name}: {state}", sys.stderr)
    _print(table(outcomes))
    failed = [outcome for outcome in outcomes if outcome.failed]
    for outcome in failed:
        for fault in outcome.faults[:5]:
            _print(f"{outcome.name}: {fault}")
        if outcome.errors:
            _print(f"{outcome.name}: answers by status: {dict(outcome.statuses)}")
    return 1 if failed else 0


def _print(text: str, stream: TextIO = sys.stdout) -> None:
    print(text, file=stream, flush=True)


if __name__ == "__main__":
    sys.exit(main())
