"""The run of a process if one command starts several trainings."""

from __future__ import annotations

import sys
from pathlib import Path

from helpers.batches import eventually
from helpers.patience import HANGS
from helpers.service import Service, running_service

from .conftest import WITH_HOOKS, Scripts, all_stored

RANKS = """
import torch.distributed as dist

def train_ranks(steps, store=None):
    # a file store, which keeps the keys of the last group as a launcher's store does
    method = store and f"file://{os.getcwd()}/{store}"
    ranks = dict(rank=int(os.environ["RANK"]), world_size=int(os.environ["WORLD_SIZE"]))
    dist.init_process_group("gloo", init_method=method, **(ranks if store else {}))
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(steps):
        F.cross_entropy(model(torch.randn(2, 4)), torch.randint(0, 3, (2,))).backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.barrier()
    dist.destroy_process_group()
    time.sleep(0.3)  # gloo's worker may still hold the last collective
"""
TORCHRUN = [*WITH_HOOKS, sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2"]
STATIC = ["--master_addr", "127.0.0.1"]


def assert_runs(service: Service, *steps: int, ranks: int = 2) -> None:
    """Assert one complete run per count: every step from every rank."""
    assert all_stored(service, *steps)
    runs = service.get("/runs").json()["runs"]
    assert {run["world_size"] for run in runs} == {ranks}
    assert eventually(60, lambda: all_ranks(service, ranks))


def all_ranks(service: Service, ranks: int) -> bool:
    """Whether the last step of every run has arrived from every rank."""
    rank_counts = []
    for run in service.get("/runs").json()["runs"]:
        step = service.get(f"/runs/{run['id']}/steps/0/{run['steps']}")
        rank_counts.append(len(step.json()["records"]))
    return rank_counts != [] and set(rank_counts) == {ranks}


def test_two_trainings_of_one_shell_script_are_two_runs(scripts: Scripts, tmp_path: Path) -> None:
    (tmp_path / "job.sh").write_text(f'{sys.executable} "$1" && {sys.executable} "$1"\n')
    with running_service(tmp_path / "gradledger.db") as service:
        command = [*WITH_HOOKS, "bash", str(tmp_path / "job.sh")]
        assert scripts.run("train(3)", service.url, *command).err == ""
        assert all_stored(service, 3, 3)
        first, second = (run["id"] for run in service.get("/runs").json()["runs"])
        assert first[:20] == second[:20]  # runs of one command share the beginning of their ids


def test_a_restart_of_torchrun_is_a_separate_run_and_loses_nothing(
    scripts: Scripts, tmp_path: Path
) -> None:
    code = """
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    train_ranks(3, "first")
    sys.exit(1)
train_ranks(5, "second")
"""
    with running_service(tmp_path / "gradledger.db") as service:
        command = [*TORCHRUN, "--standalone", "--max-restarts", "1"]
        done = scripts.run(RANKS + code, service.url, *command)
        assert done.status == 0, done.err
        assert "gradledger" not in done.err
        assert_runs(service, 3, 5)


def test_torchrun_twice_with_one_address_in_one_command_is_two_runs(
    scripts: Scripts, tmp_path: Path, nowhere: str
) -> None:
    port = nowhere.rsplit(":", 1)[1]
    words = " ".join([*TORCHRUN[len(WITH_HOOKS) :], *STATIC, "--master_port", port])
    (tmp_path / "job.sh").write_text(f'{words} "$1" && {words} "$1"\n')
    with running_service(tmp_path / "gradledger.db") as service:
        command = [*WITH_HOOKS, "bash", str(tmp_path / "job.sh")]
        done = scripts.run(RANKS + "train_ranks(4)", service.url, *command)
        assert "gradledger:" not in done.err
        assert_runs(service, 4, 4)


def test_ranks_spawned_twice_by_one_process_are_two_runs(
    scripts: Scripts, tmp_path: Path, nowhere: str
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
        done = scripts.run(RANKS + code, service.url)
        assert "gradledger" not in done.err
        assert_runs(service, 3, 4)


def test_nodes_started_by_separate_commands_are_one_run(
    scripts: Scripts, tmp_path: Path, nowhere: str
) -> None:
    port = nowhere.rsplit(":", 1)[1]
    with running_service(tmp_path / "gradledger.db") as service:
        started = []
        for node in ("0", "1"):
            words = [*WITH_HOOKS, sys.executable, "-m", "torch.distributed.run", "--nnodes", "2"]
            words += ["--node_rank", node, *STATIC, "--master_port", port]
            code = RANKS + "train_ranks(4)"
            started.append(scripts.start(code, service.url, *words, GRADLEDGER_RUN=f"node-{node}"))
        for process in started:
            _, complaint = process.communicate(timeout=HANGS)
            assert process.returncode == 0, complaint
            assert "gradledger:" not in complaint
        assert_runs(service, 4)


def test_a_process_may_watch_two_distributed_trainings(scripts: Scripts, tmp_path: Path) -> None:
    code = """
for steps in (2, 3):
    with gradledger.watch():
        train_ranks(steps, f"store{steps}")
"""
    with running_service(tmp_path / "gradledger.db") as service:
        command = [*TORCHRUN[len(WITH_HOOKS) :], "--standalone"]
        done = scripts.run(RANKS + code, service.url, *command)
        assert done.status == 0, done.err
        assert_runs(service, 2, 3)
