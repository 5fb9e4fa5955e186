"""One rank of a real training sends nothing: what the others prove holds, and it is named."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gradledger import autostart
from helpers import http
from helpers.batches import eventually
from helpers.forkserver import Python
from helpers.gate import Gate, new_gate
from helpers.patience import HANGS
from helpers.ports import reserved_port
from helpers.service import Service, running_service

RANKS, ABSENT, STEPS = 3, 1, 8
SCRIPT = Path(__file__).parents[1] / "launcher" / "scripts" / "train.py"
NEVER = "3600"  # seconds: what is evaluated meanwhile did not wait for the rank timeout


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Gate]:
    """Where rank 0 waits after half of the steps, and with it the others."""
    with new_gate(tmp_path / "gate") as created:
        yield created


def start(service: Service, folder: Path, port: int, gate: Path, loop: str) -> list[Python]:
    """All ranks; the hooks are on in all but one."""
    variables = {k: v for k, v in os.environ.items() if not k.startswith("GRADLEDGER_")}
    variables |= {"OMP_NUM_THREADS": "1", "GRADLEDGER_SPOOL": str(folder / "spool")}
    variables |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    variables |= {"WORLD_SIZE": str(RANKS), "LOCAL_WORLD_SIZE": str(RANKS)}
    arguments = [str(SCRIPT), loop, str(STEPS)]
    hooked = autostart.environment(variables, arguments, url=service.url, name="absent")
    return [
        Python(
            [*arguments, gate if rank == 0 else ""],
            {**(variables if rank == ABSENT else hooked), "RANK": str(rank)},
        )
        for rank in range(RANKS)
    ]


@pytest.mark.parametrize(
    ("loop", "rules"),
    [
        ("mean-of-means", {"reduction.token_weights_unequal", "ddp.missing_no_sync"}),
        ("token-mean", {"ddp.missing_no_sync"}),
    ],
)
def test_the_verdict_holds_for_the_ranks_that_report_and_names_the_absent_one(
    tmp_path: Path, gate: Gate, loop: str, rules: set[str]
) -> None:
    with running_service(tmp_path / "g.db", rank_timeout=NEVER) as service, reserved_port() as port:
        processes = start(service, tmp_path, port, gate.path, loop)
        try:
            assert eventually(HANGS, lambda: document(service).get("steps") == STEPS // 2)
            verdict = document(service)
        finally:
            gate.open()
            outputs = [process.communicate(HANGS)[1] for process in processes]
        assert [process.returncode for process in processes] == [0] * RANKS, outputs
        page = http.get(f"{service.url}/runs/{verdict['run']}", timeout=HANGS).text
    assert {finding["rule"] for finding in verdict["findings"]} == rules
    assert verdict["topology"]["never_sent"] == [ABSENT]
    assert verdict["coverage"]["reduction.wrong_denominator"] == (
        f"not_measured: no record of rank {ABSENT} arrived"
    )
    assert f"rank {ABSENT} never sent a record." in page


def document(service: Service) -> dict[str, Any]:
    """The verdict of the only run, once there is one."""
    runs = service.get("/runs").json()["runs"]
    return dict(service.get(f"/runs/{runs[0]['id']}/verdict").json()) if runs else {}
