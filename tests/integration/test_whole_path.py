"""From an unmodified training script to an evaluated run, with the service killed meanwhile.

No time limit or interval ends a wait: the service evaluates when records arrive, and the limits of
the end of a training are longer than the test.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from gradledger import autostart
from gradledger_monitor.store.packing import unpack_records
from helpers.batches import eventually
from helpers.forkserver import Python
from helpers.gate import Gate, new_gate
from helpers.patience import HANGS
from helpers.service import Service, running_service, start_service

STEPS = 90
GATES = (30, 60)  # the steps after which the script waits for the test
ON_ARRIVAL = {"evaluation_interval": str(2 * HANGS), "rank_timeout": str(2 * HANGS)}

# The classic mistake, in plain PyTorch, without gradledger.
SCRIPT = f"""
import sys
import torch
import torch.nn.functional as F

torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Linear(4, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
gate = open(sys.argv[1])
for step in range(1, {STEPS} + 1):
    for tokens in (2, 10, 3, 7):
        logits = model(torch.randn(tokens, 4))
        (F.cross_entropy(logits, torch.randint(0, 3, (tokens,))) / 4).backward()
    optimizer.step()
    optimizer.zero_grad()
    print(step, flush=True)
    if step in {GATES}:
        gate.readline()
"""

# Runs the script as ``python SCRIPT``.
PATIENT = f"""
import runpy
import sys
from gradledger.delivery import pipeline

pipeline.EXIT_SECONDS = pipeline.EXIT_SECONDS_UNANSWERED = {2 * HANGS}
pipeline.EXIT_SECONDS_UNSAVED = {2 * HANGS}
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


class Training:
    """The script in the environment of ``gradledger run``, in a separate process."""

    def __init__(self, folder: Path, url: str, gate: Gate) -> None:
        script, patient = folder / "train.py", folder / "patient.py"
        script.write_text(SCRIPT)
        patient.write_text(PATIENT)
        variables = {k: v for k, v in os.environ.items() if not k.startswith("GRADLEDGER_")}
        variables |= {"OMP_NUM_THREADS": "1", "GRADLEDGER_SPOOL": str(folder / "spool")}
        self.process = Python(
            [patient, script, gate.path],
            autostart.environment(variables, [str(script)], url=url, name="classic"),
        )

    def until(self, step: int) -> None:
        """Wait until the script has taken a step."""
        while int(self.process.stdout.readline()) < step:
            pass

    def end(self) -> str:
        """Wait for the end of the script; returns its messages on stderr."""
        _, messages = self.process.communicate(HANGS)
        assert self.process.returncode == 0, messages
        return messages


def the_run(service: Service) -> Any:
    """The only run there is, or None."""
    runs = service.get("/runs").json()["runs"]
    assert len(runs) <= 1
    return runs[0] if runs else None


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Gate]:
    """Where the script waits."""
    with new_gate(tmp_path / "gate") as created:
        yield created


def evaluated(service: Service, steps: int) -> Callable[[], bool]:
    """Checks whether this many steps of the run are evaluated."""
    return lambda: (the_run(service) or {"steps": 0})["steps"] >= steps


def stored(database: Path) -> tuple[int, int]:
    """Records of steps, and how many different steps they are of."""
    with closing(sqlite3.connect(database)) as connection:
        chunks = connection.execute("select records from chunks").fetchall()
    steps = [step for (records,) in chunks for step in unpack_records(records)]
    return len(steps), len(set(steps))


def assert_the_run_is_complete(service: Service) -> None:
    """Every step, once; the verdict; and the finding."""
    assert eventually(HANGS, evaluated(service, STEPS))
    run = the_run(service)
    assert run["name"] == "classic"
    series = service.get(f"/runs/{run['id']}/series").json()
    assert series["step"] == list(range(1, STEPS + 1))
    assert all(d == pytest.approx(series["misallocation"][0]) for d in series["misallocation"])
    verdict = service.get(f"/runs/{run['id']}/verdict").json()
    (finding,) = verdict["findings"]
    assert (finding["rule"], finding["first_step"], finding["last_step"], finding["steps"]) == (
        "reduction.token_weights_unequal",
        1,
        STEPS,
        STEPS,
    )
    # tokens 2, 10, 3, 7 of 22, each micro-batch a quarter: half of |n/22 - 1/4|, added up
    assert finding["evidence"]["misallocation"] == pytest.approx(3 / 11, abs=1e-4)
    assert verdict["verdict"] == "broken"


def test_a_killed_service_that_is_restarted_misses_no_step_and_counts_none_twice(
    tmp_path: Path, gate: Gate
) -> None:
    database = tmp_path / "gradledger.db"
    service = start_service(database, 0, **ON_ARRIVAL)
    training = Training(tmp_path, service.url, gate)
    try:
        assert eventually(HANGS, evaluated(service, GATES[0]))
        gate.open()
        service.kill()
        training.until(GATES[1])
        service = start_service(database, service.port, **ON_ARRIVAL)
        gate.open()
        assert "not sent" not in training.end()  # it may report that the service was away
        assert_the_run_is_complete(service)
        assert eventually(HANGS, lambda: bool(the_run(service)["ended"]))
        assert stored(database) == (STEPS, STEPS)
    finally:
        training.process.end_session()
        service.kill()


def test_a_service_that_stays_down_changes_nothing_for_the_script(
    tmp_path: Path, gate: Gate
) -> None:
    with running_service(tmp_path / "gradledger.db", 0, **ON_ARRIVAL) as service:
        training = Training(tmp_path, service.url, gate)
        assert eventually(HANGS, evaluated(service, GATES[0]))
        service.kill()
    gate.open()
    training.until(GATES[1])
    gate.open()
    assert "records not sent yet" in training.end()
