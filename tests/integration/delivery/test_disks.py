"""Failing disks and invalid settings: training goes on, with one message each."""

from __future__ import annotations

import os
from pathlib import Path

from helpers.batches import eventually
from helpers.misbehaving import says, server, takes
from helpers.patience import HANGS
from helpers.service import running_service

from .conftest import Scripts, all_stored

LIMITED = """
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, 60_000))  # as a full disk: EFBIG for ENOSPC
"""
TRAIN = "train(20)\nwait_until(lambda: on_disk() == 20)\ntrain(280)"  # with two optimizers


def test_a_full_disk_does_not_stop_training_and_its_files_are_complete(
    scripts: Scripts, nowhere: str
) -> None:
    done = scripts.run(f"{LIMITED}\n{TRAIN}\nprint('trained')", nowhere)
    assert (done.returncode, done.stdout) == (0, "trained\n")
    assert done.stderr.count("(File too large); they stay in memory") == 1
    stored = scripts.on_disk()
    assert stored > 0
    assert f"gradledger: {stored} records not sent yet" in done.stderr
    assert f"gradledger: {301 - stored} records lost: not sent" in done.stderr
    (path,) = scripts.spool.rglob("*.jsonl")
    assert path.read_bytes().endswith(b"}\n")


def test_a_full_disk_loses_nothing_when_the_service_recovers(scripts: Scripts) -> None:
    with server(says(500)) as service:
        code = "uploader.REPORT_AFTER_FAILURES = 1_000\n"
        code += f"{TRAIN}\nwait_until(lambda: os.path.exists('recovered'))"
        process = scripts.start(LIMITED + code, service.url)
        message = process.stderr.readline()
        assert "(File too large); they stay in memory" in message
        service.behaviour = takes
        (scripts.folder / "recovered").touch()
        _, complaint = process.communicate(timeout=HANGS)
        assert service.steps() == [*range(1, 21), *range(1, 281)]
    assert complaint == ""
    assert scripts.on_disk() == 0


def test_an_unwritable_home_does_not_stop_training(scripts: Scripts, nowhere: str) -> None:
    environ = {"HOME": "/proc/none", "GRADLEDGER_SPOOL": ""}
    done = scripts.run("train(10)\nprint('trained')", nowhere, environ=environ)
    assert (done.returncode, done.stdout) == (0, "trained\n")
    messages = [line for line in done.stderr.splitlines() if line.startswith("gradledger:")]
    assert len(messages) == 2
    assert "(No such file or directory); they stay in memory" in messages[0]
    assert "11 records lost: not sent" in messages[1]


def test_invalid_settings_are_reported_once_and_the_defaults_are_used(
    scripts: Scripts, tmp_path: Path
) -> None:
    bad = {
        "GRADLEDGER_URL": "tcp//nowhere",
        "GRADLEDGER_TOKEN": "secret with spaces",
        "GRADLEDGER_NAME": "n" * 300,
        "GRADLEDGER_SPOOL_BYTES": "plenty",
        "GRADLEDGER_RUN": "my run!",
    }
    code = """
from gradledger.settings import Settings
Settings.from_environment(os.environ)
train(2)
"""
    with running_service(tmp_path / "gradledger.db") as service:
        # no service has the default address, so the script passes the URL
        watch = f"gradledger.watch(url={service.url!r})"
        done = scripts.run(f"{watch}\n{code}", service.url, hooks=False, environ=bad)
        assert done.returncode == 0
        messages = [line for line in done.stderr.splitlines() if line.startswith("gradledger:")]
        assert len(messages) == len(bad)
        for name in bad:
            assert sum(name in line for line in messages) == 1
        assert "secret" not in done.stderr
        assert eventually(HANGS, lambda: len(service.get("/runs").json()["runs"]) == 1)
        (run,) = service.get("/runs").json()["runs"]
        assert run["name"] == "script0.py"


def test_a_long_step_sends_heartbeats_so_that_a_stall_can_be_detected(
    scripts: Scripts, tmp_path: Path
) -> None:
    code = """
import gradledger.session
gradledger.session.HEARTBEAT_SECONDS = uploader.HEARTBEAT_SECONDS = 0.1
train(2)
torch.nn.Linear(2, 1)(torch.ones(2)).backward()
signal.pause()
"""
    with running_service(tmp_path / "gradledger.db") as service:
        process = scripts.start(code, service.url)
        assert all_stored(service, 2)

        def last_seen() -> float:
            return float(service.get("/runs").json()["runs"][0]["last_seen"])

        first = last_seen()
        assert eventually(HANGS, lambda: last_seen() > first)
        process.kill()
        (run,) = service.get("/runs").json()["runs"]
        assert run["steps"] == 2


def test_undecodable_arguments_do_not_lose_the_run(scripts: Scripts, tmp_path: Path) -> None:
    odd = os.fsdecode(b"--data=\xff\xfe")
    with running_service(tmp_path / "gradledger.db") as service:
        done = scripts.run("train(2)", service.url, odd)
        assert (done.returncode, done.stderr) == (0, "")
        assert all_stored(service, 2)
