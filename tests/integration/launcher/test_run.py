"""`gradledger run` behaves as the command: exit status, signals, output."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from gradledger import autostart
from gradledger.capture.step_sampling import BURST, LONGEST_PERIOD
from gradledger.cli import HELP
from gradledger_monitor.cli import app
from gradledger_monitor.store.database import Store
from gradledger_monitor.store.runs import listing
from gradledger_monitor.store.runs.listing import RunFilter
from helpers import http
from helpers.batches import eventually
from helpers.launching import GRADLEDGER, Launch, train
from helpers.patience import HANGS
from helpers.service import Service, running_service

WAITS = """
import signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(5))
try:
    print("ready", flush=True)
    signal.pause()
except KeyboardInterrupt:
    sys.exit(6)
"""


@pytest.mark.parametrize("status", [0, 7])
def test_the_exit_status_is_the_commands_own(launch: Launch, status: int) -> None:
    assert launch("run", "--", "bash", "-c", f"exit {status}").returncode == status


@pytest.mark.parametrize(("sent", "status"), [(signal.SIGTERM, 5), (signal.SIGINT, 6)])
def test_signals_reach_the_command(environ: dict[str, str], sent: int, status: int) -> None:
    command = [*GRADLEDGER, "run", "--", sys.executable, "-c", WAITS]
    with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
        process.send_signal(sent)
        assert process.wait(HANGS) == status


def test_a_shell_sees_a_command_killed_by_a_signal_as_such(environ: dict[str, str]) -> None:
    line = f"{sys.executable} -m gradledger.cli run -- bash -c 'kill -9 $$'; exit $?"
    assert (
        subprocess.run(["bash", "-c", line], env=environ, stderr=subprocess.DEVNULL).returncode
        == 137
    )


def test_output_passes_through_untouched(environ: dict[str, str]) -> None:
    script = "import sys; sys.stdout.buffer.write(bytes(range(256))); sys.stderr.write('err')"
    command = [*GRADLEDGER, "run", "--", sys.executable, "-c", script]
    done = subprocess.run(command, env=environ, capture_output=True)
    assert (done.stdout, done.stderr) == (bytes(range(256)), b"err")


def test_input_passes_through_untouched(environ: dict[str, str]) -> None:
    command = [*GRADLEDGER, "run", "--", "cat"]
    done = subprocess.run(command, env=environ, capture_output=True, input=b"\x00in")
    assert done.stdout == b"\x00in"


def test_options_of_the_command_are_passed_on(launch: Launch) -> None:
    done = launch("run", "--name", "a", "--", "echo", "--name", "b", "--", "c")
    assert done.stdout == "--name b -- c\n"


def test_the_two_dashes_are_optional(launch: Launch) -> None:
    assert launch("run", "echo", "--url", "x").stdout == "--url x\n"


def test_a_script_alone_is_run_by_python(launch: Launch, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("#!/bin/sh\nimport sys; print(sys.argv[1:])\n")
    assert launch("run", script, "--lr", "1").stdout == "['--lr', '1']\n"
    script.write_text("#!/bin/sh\necho a program\n")
    script.chmod(0o755)
    assert launch("run", script).stdout == "a program\n"


def test_bad_usage_exits_2(launch: Launch) -> None:
    assert launch("run").returncode == 2
    assert launch("run", "--nme", "x", "--", "true").returncode == 2
    assert launch().returncode == 2
    assert launch("run", "--", "true", GRADLEDGER_RUN="has spaces").returncode == 2


def test_a_missing_command_is_reported(launch: Launch) -> None:
    done = launch("run", "--", "no-such-command")
    assert done.returncode == 127
    assert "no-such-command" in done.stderr


def test_help_and_version(launch: Launch) -> None:
    assert "check" in launch("--help").stdout
    assert launch("--version").stdout.startswith("gradledger ")
    assert "--project" in launch("run", "--help").stdout


def test_the_command_is_that_of_an_interpreter(environ: dict[str, str]) -> None:
    command = [sys.executable, "-m", "gradledger", "--version"]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert done.stdout.startswith("gradledger "), done.stderr


def test_help_names_every_command_of_the_monitor() -> None:
    commands = [(command.name, command.callback) for command in app.registered_commands]
    names = [name or callback.__name__ for name, callback in commands if callback]
    assert names
    assert [name for name in names if f"\n  {name} " not in HELP] == []


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("python train.py --lr 1", "train"),
        ("torchrun --nproc_per_node 2 path/to/pretrain.py", "pretrain"),
        ("accelerate launch --cpu fine-tune.py", "fine-tune"),
        ("python -m package.train --config c.py", "package.train"),
        ("python -m torch.distributed.run --standalone ddp.py", "ddp"),
        ("./run.sh", "run"),
        ("bash scripts/night.sh", "night"),
        ("python", "python"),
    ],
)
def test_a_run_is_named_after_its_script(command: str, name: str) -> None:
    assert autostart.default_name(command.split()) == name


def test_run_ids_are_unique_and_valid() -> None:
    ids = {autostart.new_run_id() for _ in range(50)}
    assert len(ids) > 45
    assert all(len(one) == 20 and one.replace("-", "").isalnum() for one in ids)


def test_options_reach_the_command_as_variables(launch: Launch) -> None:
    words = ["run", "--name", "n", "--project", "p", "--url", "http://there:1", "--", "env"]
    variables = dict(
        line.split("=", 1) for line in launch(*words).stdout.splitlines() if "=" in line
    )
    assert variables["GRADLEDGER_NAME"] == "n"
    assert variables["GRADLEDGER_PROJECT"] == "p"
    assert variables["GRADLEDGER_URL"] == "http://there:1"
    assert variables["PYTHONPATH"] == str(autostart.PATH)


def test_an_address_that_is_none_is_a_bad_option(launch: Launch) -> None:
    done = launch("run", "--url", "nonsense", "--", "env")
    assert done.returncode == 2 and done.stdout == ""
    assert "--url='nonsense' is invalid: use a URL such as http://host:4777" in done.stderr


TAGGED = """
import gradledger, torch
watched = gradledger.watch(config={"lr": 1, "tags": "own"})
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1)
torch.nn.functional.mse_loss(model(torch.ones(1, 1)), torch.ones(1, 1)).backward()
optimizer.step()
watched.close()
"""


def test_a_run_is_found_by_the_tags_of_its_command_line_and_of_its_code(
    environ: dict[str, str], tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(TAGGED)
    tags = ["--tag", "sft", "--tag", "nightly, on b200"]
    with running_service(tmp_path / "a.db") as service:
        there = {**environ, "GRADLEDGER_URL": service.url, "GRADLEDGER_TAGS": "sft,"}
        for command in ([*GRADLEDGER, "run", *tags, "--"], []):
            command = [*command, "python", str(script)]
            subprocess.run(command, env=there, check=True, capture_output=True)
        page = http.get(f"{service.url}/?tag=on+b200").text
        with closing(Store(service.database)) as store:
            rows = listing.matching_runs(store, RunFilter(tag="sft"), 10, 0)
            tags_by_run = listing.tags_of(store, [row.id for row in rows])
    assert sorted(tags_by_run.values()) == [["nightly", "on b200", "own", "sft"], ["own", "sft"]]
    assert [f"/runs/{row.id}" in page for row in rows].count(True) == 1


def test_variables_of_the_environment_are_not_overwritten() -> None:
    base = {"GRADLEDGER_RUN": "night-7", "GRADLEDGER_NAME": "mine", "PYTHONPATH": "/a:/b"}
    env = autostart.environment(base, ["python", "train.py"])
    assert (env["GRADLEDGER_RUN"], env["GRADLEDGER_NAME"]) == ("night-7", "mine")
    assert env["PYTHONPATH"].split(os.pathsep) == [str(autostart.PATH), "/a", "/b"]


def test_a_nested_run_adds_nothing_twice() -> None:
    once = autostart.environment({}, ["python"])
    assert autostart.environment(once, ["python"])["PYTHONPATH"] == once["PYTHONPATH"]


def test_without_the_monitor_other_commands_name_the_package_to_install(
    environ: dict[str, str], tmp_path: Path
) -> None:
    hooks = Path(autostart.__file__).parents[2]
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "bare"], check=True)
    command = [
        str(tmp_path / "bare" / "bin" / "python"),
        "-m",
        "gradledger.cli",
        "check",
        "--",
        "true",
    ]
    env = {**environ, "PYTHONPATH": str(hooks)}
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.returncode == 2
    assert "pip install 'gradledger[monitor]'" in done.stderr


def test_a_run_of_short_steps_is_sampled_and_evaluated_without_delay(
    environ: dict[str, str], tmp_path: Path
) -> None:
    """The service does not wait for steps that were not sampled, and finds the bug."""
    # However slow the machine is, a burst begins at the latest after the longest period.
    steps_taken = LONGEST_PERIOD + BURST
    command = [*GRADLEDGER, "run", "--", *train("mean-of-means", steps_taken)]
    with running_service(tmp_path / "g.db", rank_timeout="86400") as service:
        subprocess.run(command, env={**environ, "GRADLEDGER_URL": service.url}, check=True)
        run = evaluated_run(service)
        series = f"/runs/{run['id']}/series"
        first = service.get(f"{series}?last=256").json()["step"]
        sampled = sum(service.get(series).json()["steps"])
        later = service.get(f"{series}?first=200&max_points=5000").json()["step"]
        before, after = next((a, b) for a, b in pairwise(later) if b > a + 1)
        page = http.get(f"{service.url}/runs/{run['id']}").text
        steps = f"{service.url}/runs/{run['id']}/steps/0/"
        recorded_page = http.get(f"{steps}{before}").text
        skipped_page = http.get(f"{steps}{before + 1}")
    assert f'/steps/0/{after}">Step {after}<' in recorded_page
    assert (skipped_page.status_code, f'/steps/0/{before}"' in skipped_page.text) == (404, True)
    assert run["verdict"] == "broken"
    assert first == list(range(1, 257))
    assert 256 < sampled < run["steps"] <= steps_taken
    assert "tokens in sampled steps" in page


def evaluated_run(service: Service) -> dict[str, Any]:
    """The only run, when it has ended and is evaluated completely."""
    runs: list[dict[str, Any]] = []

    def is_evaluated() -> bool:
        runs[:] = service.get("/runs").json()["runs"]
        return bool(runs) and runs[0]["ended"] and runs[0]["steps"] > 256

    assert eventually(HANGS, is_evaluated)
    return runs[0]


def test_a_training_prints_its_address_and_at_its_end_its_verdict(
    environ: dict[str, str], tmp_path: Path
) -> None:
    """The training waits for a terminal's reader only as long as for the delivery of its records:
    on a busy machine, the verdict may not be known by then."""
    with running_service(tmp_path / "a.db") as service:
        there = {**environ, "GRADLEDGER_URL": service.url}
        command = [*GRADLEDGER, "run", "--", *train("mean-of-means", 40)]
        done = subprocess.run(command, env=there, check=True, capture_output=True, text=True)
        quiet = {**there, "GRADLEDGER_SUMMARY": "off", "GRADLEDGER_ON_FINDING": "off"}
        silent = subprocess.run(command, env=quiet, check=True, capture_output=True, text=True)
    lines = done.stderr.splitlines()
    address = lines[0].removeprefix("gradledger: recording to ")
    assert address.startswith(f"{service.url}/runs/") and lines[-1].endswith(address)
    assert "BROKEN after" in done.stderr or "the verdict is not computed yet" in done.stderr
    assert "\x1b" not in done.stderr and "gradledger" not in silent.stderr
