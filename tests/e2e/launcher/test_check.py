"""`gradledger check`: the verdict on a real command, and its exit status."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from .conftest import GRADLEDGER, Launch

TRAIN = Path(__file__).parent / "scripts" / "train.py"
UNEQUAL = "reduction.token_weights_unequal"
CLASSIC, CORRECTED = "mean-of-means", "token-mean"
SHAPE = {"run", "verdict", "steps", "ranks", "findings", "tree", "coverage"}
FINDING_SHAPE = {
    "rule", "severity", "first_step", "last_step", "steps", "title", "summary", "fix",
    "evidence", "inhibited_by", "acknowledged",
}  # fmt: skip


def train(loop: str, steps: int, pause: float = 0.0) -> list[str]:
    """The command of a training."""
    return [sys.executable, str(TRAIN), loop, str(steps), str(pause)]


def read(path: Path) -> dict[str, Any]:
    """The verdict file; checks its structure."""
    report: dict[str, Any] = json.loads(path.read_text())
    assert set(report) == SHAPE
    assert all(set(finding) == FINDING_SHAPE for finding in report["findings"])
    assert all(set(n) == {"node", "question", "status", "reason"} for n in report["tree"])
    return report


def test_a_classic_bug_exits_1_and_is_named(launch: Launch, tmp_path: Path) -> None:
    done = launch("check", "--json", tmp_path / "v.json", "--", *train(CLASSIC, 6))
    report = read(tmp_path / "v.json")
    assert done.returncode == 1, done.stderr
    assert [finding["rule"] for finding in report["findings"]] == [UNEQUAL]
    assert (report["run"], report["verdict"]) == ("train", "broken")
    assert (report["steps"], report["ranks"]) == (6, 1)
    assert report["findings"][0]["first_step"] == 1
    assert report["coverage"][UNEQUAL] == "finding"
    assert done.stdout == "trained 6\n"
    assert "BROKEN" in done.stderr
    assert UNEQUAL in done.stderr
    assert "\x1b[" not in done.stderr


def test_the_corrected_loop_exits_0(launch: Launch, tmp_path: Path) -> None:
    done = launch("check", "--json", tmp_path / "v.json", "--name", "n", "--", *train(CORRECTED, 6))
    report = read(tmp_path / "v.json")
    assert done.returncode == 0, done.stderr
    assert (report["run"], report["verdict"], report["findings"]) == ("n", "balanced", [])
    assert "BALANCED" in done.stderr


def test_the_ranks_of_one_command_are_one_run(launch: Launch, tmp_path: Path) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    command = [*torchrun, *train(CLASSIC, 4)[1:]]
    done = launch("check", "--json", tmp_path / "v.json", "--", *command)
    report = read(tmp_path / "v.json")
    assert done.returncode == 1, done.stderr
    assert (report["run"], report["steps"], report["ranks"]) == ("train", 4, 2)
    assert UNEQUAL in [finding["rule"] for finding in report["findings"]]


def test_several_trainings_of_one_command_are_all_reported(launch: Launch, tmp_path: Path) -> None:
    job = tmp_path / "job.sh"
    job.write_text("\n".join(" ".join(train(loop, 5)) for loop in (CLASSIC, CORRECTED)))
    done = launch("check", "--json", tmp_path / "v.json", "--", "bash", job)
    report = read(tmp_path / "v.json")
    assert done.returncode == 1, done.stderr
    assert (report["steps"], report["verdict"], report["run"]) == (10, "broken", "job")
    assert [finding["rule"] for finding in report["findings"]] == [UNEQUAL]
    assert "BROKEN" in done.stderr
    assert "BALANCED" in done.stderr


def test_a_command_that_fails_exits_3_and_its_findings_are_still_reported(
    launch: Launch, tmp_path: Path
) -> None:
    job = tmp_path / "job.sh"
    job.write_text(f"{' '.join(train(CLASSIC, 5))}\nexit 9\n")
    done = launch("check", "--json", tmp_path / "v.json", "--", "bash", job)
    assert done.returncode == 3
    assert [finding["rule"] for finding in read(tmp_path / "v.json")["findings"]] == [UNEQUAL]
    assert UNEQUAL in done.stderr
    assert "the command failed: exit status 9" in done.stderr


def test_a_missing_command_exits_3(launch: Launch) -> None:
    done = launch("check", "--", "no-such-command")
    assert done.returncode == 3
    assert "no-such-command" in done.stderr


def test_a_command_that_does_not_train_exits_4(launch: Launch, tmp_path: Path) -> None:
    done = launch("check", "--json", tmp_path / "v.json", "--", "true")
    report = read(tmp_path / "v.json")
    assert done.returncode == 4
    assert (report["verdict"], report["steps"], report["findings"]) == ("incomplete", 0, [])
    assert "no optimizer step was recorded: no process reported: " in done.stderr


HALVES = {
    "print()": "Python ran, but never imported torch",
    "import torch": "torch was imported, but backward never ran",
    "import torch; torch.ones(1, requires_grad=True).sum().backward()": (
        "backward ran, but no optimizer stepped"
    ),
}


@pytest.mark.parametrize("code", HALVES)
def test_for_a_command_that_does_not_train_the_stage_is_reported(launch: Launch, code: str) -> None:
    done = launch("check", "--", sys.executable, "-c", code)
    assert done.returncode == 4
    assert f"gradledger: no optimizer step was recorded: {HALVES[code]}\n" in done.stderr


def test_a_python_without_the_hooks_is_reported(launch: Launch) -> None:
    done = launch("check", "--", sys.executable, "-I", "-c", "print()")
    assert done.returncode == 4
    assert "no process reported: python -I ignores PYTHONPATH" in done.stderr


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["--fail-on", "nonsense", "--", "true"],
        ["--max-steps", "0", "--", "true"],
        ["--json", "no/such/folder/v.json", "--", "true"],
        ["--nonsense", "--", "true"],
    ],
)
def test_bad_usage_exits_2(launch: Launch, words: list[str]) -> None:
    assert launch("check", *words).returncode == 2


def test_max_steps_ends_the_command_without_a_failure(launch: Launch, tmp_path: Path) -> None:
    begun = time.monotonic()
    command = train(CORRECTED, 100_000, 0.01)
    done = launch("check", "--max-steps", 5, "--json", tmp_path / "v.json", "--", *command)
    report = read(tmp_path / "v.json")
    assert done.returncode == 0, done.stderr
    assert 5 <= report["steps"] < 10_000
    assert time.monotonic() - begun < 60


def test_a_severity_below_fail_on_does_not_fail_the_check(launch: Launch, tmp_path: Path) -> None:
    # divided by twice the tokens: the balance is 0.5 in every step, which is a warning at most
    text = TRAIN.read_text().replace("loss * ranks / count", "loss * ranks / (2 * count)")
    (tmp_path / "halved.py").write_text(text)
    command = [sys.executable, tmp_path / "halved.py", CORRECTED, "6"]
    done = launch("check", "--fail-on", "error", "--json", tmp_path / "v.json", "--", *command)
    severities = {finding["severity"] for finding in read(tmp_path / "v.json")["findings"]}
    assert severities <= {"info", "warning"}
    assert severities
    assert done.returncode == 0
    assert launch("check", "--fail-on", "info", "--", *command).returncode == 1


def test_environment_variables_of_another_service_are_ignored(
    launch: Launch, tmp_path: Path
) -> None:
    there = {"GRADLEDGER_URL": "http://127.0.0.1:9", "GRADLEDGER_RUN": "x" * 200}
    there |= {"GRADLEDGER_DB": "postgresql://nowhere/none", "GRADLEDGER_PORT": "nonsense"}
    done = launch("check", "--json", tmp_path / "v.json", "--", *train(CORRECTED, 3), **there)
    assert (done.returncode, read(tmp_path / "v.json")["steps"]) == (0, 3)


def test_an_interrupt_reaches_the_command(environ: dict[str, str], tmp_path: Path) -> None:
    waits = "print('ready', flush=True); import time; time.sleep(60)"
    command = [*GRADLEDGER, "check", "--", sys.executable, "-c", waits]
    with subprocess.Popen(
        command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout
        assert process.stderr
        assert process.stdout.readline() == "ready\n"
        os.kill(process.pid, signal.SIGINT)
        assert process.wait(timeout=30) == 3
        assert "gradledger: interrupted" in process.stderr.read()


def test_an_acknowledged_finding_is_shown_and_does_not_fail_the_check(
    launch: Launch, tmp_path: Path
) -> None:
    acknowledgement = f"{UNEQUAL}=lengths are meant to differ"
    command = ["--acknowledge", acknowledgement, "--", *train(CLASSIC, 6)]
    done = launch("check", "--json", tmp_path / "v.json", *command)
    report = read(tmp_path / "v.json")
    assert done.returncode == 0, done.stderr
    assert report["verdict"] == "broken"
    assert report["findings"][0]["acknowledged"]["note"] == "lengths are meant to differ"
    assert "acknowledged: lengths are meant to differ" in done.stderr


def test_an_acknowledgement_covers_no_other_rule_and_a_stale_one_is_reported(
    launch: Launch,
) -> None:
    done = launch("check", "--acknowledge", "loop.double_step=known", "--", *train(CLASSIC, 6))
    assert done.returncode == 1, done.stderr
    assert "--acknowledge loop.double_step: no such finding" in done.stderr


@pytest.mark.parametrize(
    "acknowledgement", ["loop.double_step", "loop.no_such=note", "loop.double_step= "]
)
def test_an_acknowledgement_needs_a_rule_and_a_note(launch: Launch, acknowledgement: str) -> None:
    done = launch("check", "--acknowledge", acknowledgement, "--", *train(CLASSIC, 1))
    assert done.returncode == 2 and "--acknowledge" in done.stderr


def test_options_of_watch_apply_though_the_command_started_the_hooks(
    launch: Launch, tmp_path: Path
) -> None:
    """The loop gives every sequence equal weight and declares it, so there is no finding."""
    statement = "gradledger.watch(contract='sequence', config={'lr': 0.1}, overhead=0.5)"
    script = tmp_path / "by_sequence.py"
    script.write_text(f"import gradledger\n{statement}\n" + _without_future(TRAIN.read_text()))
    report = tmp_path / "out.json"
    command = ["check", "--json", str(report), "--", sys.executable, str(script)]
    done = launch(*command, "mean-of-means", "6")
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(report.read_text())["verdict"] == "balanced"


def _without_future(text: str) -> str:
    return text.replace("from __future__ import annotations\n", "")
