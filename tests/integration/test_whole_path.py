"""From an unmodified training script to a judged run, with the service killed on the way."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from gradledger import autostart
from gradledger_monitor.store.packing import unpack_records
from helpers.batches import eventually
from helpers.forkserver import Python
from helpers.patience import HANGS
from helpers.service import Service, running_service, start_service

STEPS = 90

PAUSE_AT = 60  # until the test lets it go on

# The classic mistake, in plain PyTorch; nothing here knows of gradledger.
SCRIPT = f"""
import pathlib
import time
import torch
import torch.nn.functional as F

torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Linear(4, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(1, {STEPS} + 1):
    for tokens in (2, 10, 3, 7):
        logits = model(torch.randn(tokens, 4))
        (F.cross_entropy(logits, torch.randint(0, 3, (tokens,))) / 4).backward()
    optimizer.step()
    optimizer.zero_grad()
    print(step, flush=True)
    time.sleep(0.03)
    while step == {PAUSE_AT} and not pathlib.Path(__file__).with_name("go").exists():
        time.sleep(0.01)
"""


class Training:
    """The script in the environment of ``gradledger run``, in a process of its own."""

    def __init__(self, folder: Path, url: str) -> None:
        script = folder / "train.py"
        script.write_text(SCRIPT)
        variables = {k: v for k, v in os.environ.items() if not k.startswith("GRADLEDGER_")}
        variables |= {"OMP_NUM_THREADS": "1", "GRADLEDGER_SPOOL": str(folder / "spool")}
        self.process = Python(
            [script],
            autostart.environment(variables, [str(script)], url=url, name="classic"),
        )
        self.step = 0
        self._go = folder / "go"

    def until(self, step: int) -> None:
        """Wait until the script has taken a step."""
        while self.step < step:
            self.step = int(self.process.stdout.readline())

    def end(self) -> str:
        """Wait for the end of the script; returns its messages on stderr."""
        self._go.touch()
        _, messages = self.process.communicate(HANGS)
        assert self.process.returncode == 0, messages
        return messages


def the_run(service: Service) -> Any:
    """The only run there is, or None."""
    runs = service.get("/runs").json()["runs"]
    assert len(runs) <= 1
    return runs[0] if runs else None


def judged(service: Service, steps: int) -> Callable[[], bool]:
    """Asks whether that many steps of the run are judged."""
    return lambda: (the_run(service) or {"steps": 0})["steps"] >= steps


def stored(database: Path) -> tuple[int, int]:
    """Records of steps, and how many different steps they are of."""
    with closing(sqlite3.connect(database)) as connection:
        chunks = connection.execute("select records from chunks").fetchall()
    steps = [step for (records,) in chunks for step in unpack_records(records)]
    return len(steps), len(set(steps))


def assert_the_whole_run_is_there(service: Service) -> None:
    """Every step, once; the verdict; and the finding."""
    assert eventually(60, judged(service, STEPS))
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


def test_a_service_that_is_killed_and_comes_back_misses_no_step_and_counts_none_twice(
    tmp_path: Path,
) -> None:
    database = tmp_path / "gradledger.db"
    service = start_service(database)
    training = Training(tmp_path, service.url)
    try:
        assert eventually(HANGS, judged(service, 10))
        service.kill()
        training.until(PAUSE_AT)
        service = start_service(database, service.port)
        assert "not sent" not in training.end()  # it may report that the service was away
        assert_the_whole_run_is_there(service)
        assert eventually(60, lambda: bool(the_run(service)["ended"]))
        assert stored(database) == (STEPS, STEPS)
    finally:
        training.process.end_session()
        service.kill()


def test_a_service_that_never_comes_back_changes_nothing_for_the_script(tmp_path: Path) -> None:
    with running_service(tmp_path / "gradledger.db") as service:
        training = Training(tmp_path, service.url)
        assert eventually(HANGS, judged(service, 5))
        service.kill()
    assert "records not sent yet" in training.end()
