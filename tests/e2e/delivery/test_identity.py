"""The run of a process if one command starts several trainings, with the launchers themselves.

The launchers are new interpreters. Where what they start need not be, it is a fork: ``python``.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from helpers import forkserver
from helpers.patience import HANGS
from helpers.service import running_service
from integration.delivery.conftest import all_stored
from integration.delivery.test_identity import RANKS, assert_runs

from .conftest import TORCHRUN, WITH_HOOKS, Commands

STATIC = ["--master_addr", "127.0.0.1"]


@pytest.fixture
def python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A program in place of ``python`` whose process is a fork. torchrun starts ranks with it."""
    path = str(forkserver.executable(tmp_path))
    monkeypatch.setenv("PYTHON_EXEC", path)
    return path


def test_two_trainings_of_one_shell_script_are_two_runs(
    commands: Commands, tmp_path: Path, python: str
) -> None:
    (tmp_path / "job.sh").write_text(f'{python} "$1" && {python} "$1"\n')
    with running_service(tmp_path / "gradledger.db") as service:
        command = [*WITH_HOOKS, "bash", str(tmp_path / "job.sh")]
        assert commands.run("train(3)", service.url, *command).stderr == ""
        assert all_stored(service, 3, 3)
        first, second = (run["id"] for run in service.get("/runs").json()["runs"])
        assert first[:20] == second[:20]  # runs of one command share the beginning of their ids


def test_a_restart_of_torchrun_is_a_separate_run_and_loses_nothing(
    commands: Commands, tmp_path: Path, python: str
) -> None:
    code = """
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    train_ranks(3, "first")
    sys.exit(1)
train_ranks(5, "second")
"""
    with running_service(tmp_path / "gradledger.db") as service:
        command = [*WITH_HOOKS, *TORCHRUN, "--standalone", "--max-restarts", "1"]
        done = commands.run(RANKS + code, service.url, *command)
        assert done.returncode == 0, done.stderr
        assert "gradledger" not in done.stderr
        assert_runs(service, 3, 5)
        environments = [run["environment"] for run in service.get("/runs").json()["runs"]]
        assert {each["torchrun restarts"] for each in environments} == {"0", "1"}
        assert len({each["torchrun job"] for each in environments}) == 1
        last = service.get("/runs").json()["runs"][0]["id"]
        linked = service.get(f"/runs/{last}/attempts").json()["attempts"]
        assert [(each["steps"], each["restarts"]) for each in linked] == [
            (3, "torchrun restart 0"),
            (5, "torchrun restart 1"),
        ]


def test_torchrun_twice_with_one_address_in_one_command_is_two_runs(
    commands: Commands, tmp_path: Path, nowhere: str, python: str
) -> None:
    port = nowhere.rsplit(":", 1)[1]
    words = " ".join([*TORCHRUN, *STATIC, "--master_port", port])
    (tmp_path / "job.sh").write_text(f'{words} "$1" && {words} "$1"\n')
    with running_service(tmp_path / "gradledger.db") as service:
        command = [*WITH_HOOKS, "bash", str(tmp_path / "job.sh")]
        done = commands.run(RANKS + "train_ranks(4)", service.url, *command)
        assert "gradledger:" not in done.stderr
        assert_runs(service, 4, 4)
        for run in service.get("/runs").json()["runs"]:
            assert service.get(f"/runs/{run['id']}/attempts").json() == {"attempts": []}


def test_ranks_spawned_twice_by_one_process_are_two_runs(
    commands: Commands, tmp_path: Path, nowhere: str
) -> None:
    code = f"""
import torch.multiprocessing

def rank(index, steps):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="{nowhere.rsplit(":", 1)[1]}")
    os.environ.update(RANK=str(index), WORLD_SIZE="2")
    train_ranks(steps)

if __name__ == "__main__":
    for steps in (3, 4):
        torch.multiprocessing.spawn(rank, args=(steps,), nprocs=2)
"""
    with running_service(tmp_path / "gradledger.db") as service:
        done = commands.run(RANKS + code, service.url, *WITH_HOOKS, sys.executable)
        assert "gradledger" not in done.stderr
        assert_runs(service, 3, 4)


def test_nodes_started_by_separate_commands_are_one_run(
    commands: Commands, tmp_path: Path, nowhere: str, python: str
) -> None:
    port = nowhere.rsplit(":", 1)[1]
    with running_service(tmp_path / "gradledger.db") as service:
        started = []
        for node in ("0", "1"):
            words = [*WITH_HOOKS, sys.executable, "-m", "torch.distributed.run", "--nnodes", "2"]
            words += ["--node_rank", node, *STATIC, "--master_port", port]
            code, environ = RANKS + "train_ranks(4)", {"GRADLEDGER_RUN": f"node-{node}"}
            started.append(commands.start(code, service.url, *words, environ=environ))
        for process in started:
            _, complaint = process.communicate(timeout=HANGS)
            assert process.returncode == 0, complaint
            assert "gradledger:" not in complaint
        assert_runs(service, 4)


def test_a_process_may_watch_two_distributed_trainings(
    commands: Commands, tmp_path: Path, python: str
) -> None:
    code = """
for steps in (2, 3):
    with gradledger.watch():
        train_ranks(steps, f"store{steps}")
"""
    with running_service(tmp_path / "gradledger.db") as service:
        command = [*TORCHRUN, "--standalone"]
        done = commands.run(RANKS + code, service.url, *command)
        assert done.returncode == 0, done.stderr
        assert_runs(service, 2, 3)
