"""The run of a process if one command starts several trainings.

The ranks have the environment that a launcher gives them. ``tests/e2e`` has the launchers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from helpers.batches import eventually
from helpers.patience import HANGS
from helpers.service import Service, running_service

from .conftest import Scripts, all_stored

RANKS = """
import torch.distributed as dist

groups = []

def train_ranks(steps, store=None):
    # a file store, which keeps the keys of the last group as a launcher's store does
    method = store and f"file://{os.getcwd()}/{store}"
    ranks = dict(rank=int(os.environ["RANK"]), world_size=int(os.environ["WORLD_SIZE"]))
    dist.init_process_group("gloo", init_method=method, **(ranks if store else {}))
    groups.append(dist.group.WORLD)  # its destructor can wait for a thread that waits for the GIL
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(steps):
        F.cross_entropy(model(torch.randn(2, 4)), torch.randint(0, 3, (2,))).backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.barrier()
    dist.destroy_process_group()
"""


def assert_runs(service: Service, *steps: int, ranks: int = 2) -> None:
    """Assert one complete run per count: every step from every rank."""
    assert all_stored(service, *steps)
    runs = service.get("/runs").json()["runs"]
    assert {run["world_size"] for run in runs} == {ranks}
    assert eventually(HANGS, lambda: all_ranks(service, ranks))


def all_ranks(service: Service, ranks: int) -> bool:
    """Whether the last step of every run has arrived from every rank."""
    rank_counts = []
    for run in service.get("/runs").json()["runs"]:
        step = service.get(f"/runs/{run['id']}/steps/0/{run['steps']}")
        rank_counts.append(len(step.json()["records"]))
    return rank_counts != [] and set(rank_counts) == {ranks}


def launch(
    scripts: Scripts,
    code: str,
    url: str,
    environ: Mapping[str, str] | None = None,
    *,
    hooks: bool = True,
    commands: Sequence[str] = ("night", "night"),
) -> None:
    """Run a script on two ranks; ``commands`` are the ids of the commands that start them."""
    processes = []
    for rank, command in enumerate(commands):
        own = {"RANK": str(rank), "WORLD_SIZE": "2", "GRADLEDGER_RUN": command, **(environ or {})}
        processes.append(scripts.start(RANKS + code, url, hooks=hooks, environ=own))
    for process in processes:
        _, complaint = process.communicate(HANGS)
        assert process.wait() == 0, complaint
        assert "gradledger" not in complaint


def test_two_trainings_of_one_command_are_two_runs(scripts: Scripts, tmp_path: Path) -> None:
    with running_service(tmp_path / "gradledger.db") as service:
        for _ in range(2):
            done = scripts.run("train(3)", service.url, environ={"GRADLEDGER_RUN": "night"})
            assert done.stderr == ""
        assert all_stored(service, 3, 3)
        runs = service.get("/runs").json()["runs"]
        assert all(run["id"].startswith("night-") for run in runs)


def test_a_restart_is_a_separate_run(scripts: Scripts, tmp_path: Path) -> None:
    with running_service(tmp_path / "gradledger.db") as service:
        for restarts, steps in enumerate((3, 5)):
            environ = {"TORCHELASTIC_RESTART_COUNT": str(restarts)}
            launch(scripts, f"train_ranks({steps}, 'store{restarts}')", service.url, environ)
        assert_runs(service, 3, 5)


def test_two_launches_with_one_address_are_two_runs(
    scripts: Scripts, tmp_path: Path, nowhere: str
) -> None:
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": nowhere.rsplit(":", 1)[1]}
    with running_service(tmp_path / "gradledger.db") as service:
        for _ in range(2):
            launch(scripts, "train_ranks(4)", service.url, address)
        assert_runs(service, 4, 4)


def test_ranks_started_by_separate_commands_are_one_run(scripts: Scripts, tmp_path: Path) -> None:
    with running_service(tmp_path / "gradledger.db") as service:
        launch(scripts, "train_ranks(4, 'store')", service.url, commands=("node-0", "node-1"))
        assert_runs(service, 4)


def test_a_process_may_watch_two_distributed_trainings(scripts: Scripts, tmp_path: Path) -> None:
    code = """
for steps in (2, 3):
    with gradledger.watch():
        train_ranks(steps, f"store{steps}")
"""
    with running_service(tmp_path / "gradledger.db") as service:
        launch(scripts, code, service.url, hooks=False)
        assert_runs(service, 2, 3)
