"""However a training ends, its records are in the service, or on disk and sent later."""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path

import pytest

from gradledger.delivery import pipeline
from helpers.batches import eventually
from helpers.patience import HANGS
from helpers.service import running_service

from .conftest import Scripts, all_stored

STEPS = 12
SAVED = f"wait_until(lambda: on_disk() == {STEPS})\n"
# A killed process loses the records of its last tick, so these scripts wait until theirs are saved.
ENDS = {
    "returns": ("", 0),
    "raises": ("raise RuntimeError('mine')", 1),
    "exits": ("sys.exit(3)", 3),
    "is asked to end": (f"{SAVED}os.kill(os.getpid(), signal.SIGTERM)", -signal.SIGTERM),
    "is interrupted": ("os.kill(os.getpid(), signal.SIGINT); signal.pause()", -signal.SIGINT),
    "leaves at once": (f"{SAVED}os._exit(4)", 4),
    "is killed": (f"{SAVED}os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
}

WITHOUT_A_CLOSE = ("leaves at once", "is asked to end", "is killed")
# Ends after which the modules are torn down, too, which takes a second: without an exception, and
# with one, whose traceback still has the model.
TORN_DOWN_WHEN_DOWN = ("returns", "is interrupted")
TORN_DOWN_WHEN_UP = ("raises",)


@pytest.mark.parametrize("end", ENDS)
def test_with_the_service_down_every_step_is_on_the_disk(
    end: str, scripts: Scripts, nowhere: str
) -> None:
    code, status = ENDS[end]
    done = scripts.run(f"train({STEPS})\n{code}", nowhere, teardown=end in TORN_DOWN_WHEN_DOWN)
    assert done.returncode == status
    assert scripts.on_disk() == STEPS
    assert done.stderr.count("gradledger:") == (0 if end in WITHOUT_A_CLOSE else 1)


@pytest.mark.parametrize("end", ["returns", "raises", "is interrupted"])
def test_with_the_service_up_every_step_is_stored(
    end: str, scripts: Scripts, tmp_path: Path
) -> None:
    code, status = ENDS[end]
    with running_service(tmp_path / "gradledger.db") as service:
        torn_down = end in TORN_DOWN_WHEN_UP
        done = scripts.run(f"train({STEPS})\n{code}", service.url, teardown=torn_down)
        assert done.returncode == status
        assert "gradledger" not in done.stderr
        assert all_stored(service, STEPS)
        (run,) = service.get("/runs").json()["runs"]
        assert run["ended"]
    assert scripts.on_disk() == 0


def test_with_the_service_up_a_killed_training_has_sent_every_step(
    scripts: Scripts, tmp_path: Path
) -> None:
    with running_service(tmp_path / "gradledger.db") as service:
        process = scripts.start(f"train({STEPS})\nsignal.pause()", service.url)
        assert all_stored(service, STEPS)
        assert eventually(HANGS, lambda: scripts.on_disk() == 0)  # a slow answer has come
        os.killpg(process.pid, signal.SIGKILL)
        _, complaint = process.communicate(timeout=HANGS)
        assert process.returncode == -signal.SIGKILL and "gradledger" not in complaint
        (run,) = service.get("/runs").json()["runs"]
        assert not run["ended"] and scripts.on_disk() == 0


def test_the_next_training_sends_the_files_of_a_killed_one_to_the_same_service(
    scripts: Scripts, tmp_path: Path, nowhere: str
) -> None:
    code, _ = ENDS["is killed"]
    scripts.run(f"train({STEPS})\n{code}", nowhere)
    assert scripts.on_disk() == STEPS
    port = int(nowhere.rsplit(":", 1)[1])
    with running_service(tmp_path / "gradledger.db", port) as service:
        code = "train(3)\nwait_until(lambda: not list(Path('spool').rglob('*.jsonl')))"
        assert scripts.run(code, service.url).stderr == ""
        assert all_stored(service, 3, STEPS)
    assert scripts.on_disk() == 0
    assert not list(scripts.spool.rglob("*.jsonl"))


def test_a_service_that_never_answers_does_not_delay_the_end(scripts: Scripts) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # the kernel accepts, nobody answers
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        code = f"""
from gradledger.session import current
pipeline.EXIT_SECONDS_UNANSWERED = {pipeline.EXIT_SECONDS_UNANSWERED}
uploader.UNANSWERED_SECONDS = 0.05
train(30)
wait_until(lambda: current()._pipeline._uploader.unanswered)
"""
        assert scripts.run(code, url).returncode == 0
    assert scripts.on_disk() == 30
    assert pipeline.EXIT_SECONDS_UNANSWERED <= 0.2


def test_a_training_with_all_records_sent_ends_without_waiting_for_a_time_limit_or_a_tick(
    scripts: Scripts, tmp_path: Path
) -> None:
    code = f"""
pipeline.TICK_SECONDS = uploader.HEARTBEAT_SECONDS = {2 * HANGS}
for _ in range(4):
    with gradledger.watch():
        train(30)
"""
    with running_service(tmp_path / "gradledger.db") as service:
        assert scripts.run(code, service.url).returncode == 0
        assert all_stored(service, 30, 30, 30, 30)


def test_a_killed_training_loses_at_most_the_last_two_ticks(scripts: Scripts, nowhere: str) -> None:
    process = scripts.start(
        """
tick, steps = pipeline.Pipeline._tick, 0

def counted(self):
    before = steps
    tick(self)
    print(before, flush=True)

pipeline.Pipeline._tick = counted
while True:
    train(1)
    steps += 1
""",
        nowhere,
    )
    at_ticks = [int(process.stdout.readline()) for _ in range(5)]
    process.kill()
    at_ticks += map(int, process.communicate()[0].splitlines())
    assert scripts.on_disk() >= at_ticks[-2] > 0
    assert 2 * pipeline.TICK_SECONDS <= 0.2


# ---------------------------------------------------------------------- several runs


def test_sequential_runs_in_one_process_are_separate_runs(scripts: Scripts, tmp_path: Path) -> None:
    code = """
for steps in (2, 3):
    with gradledger.watch(name=f"run {steps}"):
        train(steps)
train(1)
ledger = gradledger.watch()
train(4)
ledger.close()
"""
    with running_service(tmp_path / "gradledger.db") as service:
        assert scripts.run(code, service.url, hooks=False).stderr == ""
        assert all_stored(service, 2, 3, 4)
        names = {run["name"] for run in service.get("/runs").json()["runs"]}
        assert {"run 2", "run 3"} < names


FORKS = """
import multiprocessing

def child(steps):
    train(7)  # not recorded: the child has not called watch
    with_session = gradledger.watch(name="child")
    train(steps)
    # no close: the process ends as a multiprocessing worker

if __name__ == "__main__":
    gradledger.watch(name="parent")
    train(2)
    context = multiprocessing.get_context("fork")
    process = context.Process(target=child, args=(5,))
    process.start()
    process.join()
    pid = os.fork()
    if pid == 0:
        train(9)  # not recorded
        os._exit(0)
    os.waitpid(pid, 0)
    train(1)
"""


def test_a_forked_child_records_nothing_until_it_calls_watch_and_then_is_a_separate_run(
    scripts: Scripts, tmp_path: Path
) -> None:
    with running_service(tmp_path / "gradledger.db") as service:
        done = scripts.run(FORKS, service.url, hooks=False)
        assert (done.returncode, done.stderr) == (0, "")

        def stored_runs() -> set[tuple[str, int, bool]]:
            runs = service.get("/runs").json()["runs"]
            return {(run["name"], run["steps"], run["ended"]) for run in runs}

        assert eventually(HANGS, lambda: stored_runs() == {("parent", 3, True), ("child", 5, True)})
