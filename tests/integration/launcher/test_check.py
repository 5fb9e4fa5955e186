"""`gradledger check`: the verdict on a real command, and its exit status."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import pytest

from helpers import forkserver
from helpers.command import CLI
from helpers.launching import CLASSIC, CORRECTED, TRAIN, UNEQUAL, Launch, train, verdict
from helpers.patience import HANGS


def test_a_classic_bug_exits_1_and_is_named(launch: Launch, tmp_path: Path) -> None:
    done = launch("check", "--json", tmp_path / "v.json", "--", *train(CLASSIC, 6))
    report = verdict(tmp_path / "v.json")
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
    report = verdict(tmp_path / "v.json")
    assert done.returncode == 0, done.stderr
    assert (report["run"], report["verdict"], report["findings"]) == ("n", "balanced", [])
    assert "BALANCED" in done.stderr


def test_several_trainings_of_one_command_are_all_reported(launch: Launch, tmp_path: Path) -> None:
    job = tmp_path / "job.sh"
    job.write_text("\n".join(" ".join(train(loop, 5)) for loop in (CLASSIC, CORRECTED)))
    done = launch("check", "--json", tmp_path / "v.json", "--", "bash", job)
    report = verdict(tmp_path / "v.json")
    assert done.returncode == 1, done.stderr
    assert (report["steps"], report["verdict"], report["run"]) == (10, "broken", "job")
    assert [finding["rule"] for finding in report["findings"]] == [UNEQUAL]
    assert "BROKEN" in done.stderr
    assert "BALANCED" in done.stderr


def test_records_that_the_service_took_too_late_are_read_from_the_disk(
    launch: Launch, tmp_path: Path
) -> None:
    script = tmp_path / "late.py"
    script.write_text(
        "import runpy, sys\n"
        "from gradledger.delivery.http_client import Client, UploadResult\n"
        "Client.post = lambda *_: UploadResult('retry', problem='the machine is busy')\n"
        "sys.argv = sys.argv[1:]\n"
        "runpy.run_path(sys.argv[0], run_name='__main__')\n"
    )
    python, *training = train(CLASSIC, 6)
    done = launch("check", "--json", tmp_path / "v.json", "--", python, script, *training)
    report = verdict(tmp_path / "v.json")
    assert done.returncode == 1, done.stderr
    assert (report["steps"], report["verdict"]) == (6, "broken")
    assert [finding["rule"] for finding in report["findings"]] == [UNEQUAL]
    assert "not sent" not in done.stderr


def test_a_command_that_fails_exits_3_and_its_findings_are_still_reported(
    launch: Launch, tmp_path: Path
) -> None:
    job = tmp_path / "job.sh"
    job.write_text(f"{' '.join(train(CLASSIC, 5))}\nexit 9\n")
    done = launch("check", "--json", tmp_path / "v.json", "--", "bash", job)
    assert done.returncode == 3
    assert [finding["rule"] for finding in verdict(tmp_path / "v.json")["findings"]] == [UNEQUAL]
    assert UNEQUAL in done.stderr
    assert "the command failed: exit status 9" in done.stderr


def test_a_missing_command_exits_3(launch: Launch) -> None:
    done = launch("check", "--", "no-such-command")
    assert done.returncode == 3
    assert "no-such-command" in done.stderr
    assert "no optimizer step" not in done.stderr


def test_a_command_that_does_not_train_exits_4(launch: Launch, tmp_path: Path) -> None:
    done = launch("check", "--json", tmp_path / "v.json", "--", "true")
    report = verdict(tmp_path / "v.json")
    assert done.returncode == 4
    assert (report["verdict"], report["steps"], report["findings"]) == ("incomplete", 0, [])
    assert "no optimizer step was recorded: no process reported: " in done.stderr


@pytest.mark.parametrize(
    ("python", "code", "reason"),
    [
        (sys.executable, "print()", "Python ran; torch was not imported, or its import failed"),
        ("python", "import torch", "torch was imported; no backward ran"),
        (
            "python",
            "import torch; torch.ones(1, requires_grad=True).sum().backward()",
            "backward ran once; no update of a parameter was seen",
        ),
        (
            "python",
            "import torch; x = torch.ones(3, requires_grad=True)\n"
            "for _ in range(7): torch.autograd.grad(x.sum(), x)",
            "torch.autograd.grad ran 7 times; no update of a parameter was seen",
        ),
        (
            "python",
            "import torch; torch.func.grad(torch.sum)(torch.ones(3))",
            "torch.func computed gradients once, which is not followed; call backward on the loss, "
            "or torch.autograd.grad on the parameters",
        ),
        (
            "python",
            "import os, torch; torch.ones(1, requires_grad=True).sum().backward(); os._exit(0)",
            "torch was imported; a process ended without exit handlers, as by os._exit or a "
            "signal, so whether backward ran is not known",
        ),
        (
            "python",
            "import os, torch\nif os.fork() == 0:\n"
            "    torch.ones(1, requires_grad=True).sum().backward()\n    os._exit(0)\nos.wait()",
            "torch was imported; no backward ran, except perhaps in forked children, which are "
            'not recorded. Start them with multiprocessing.set_start_method("spawn")',
        ),
    ],
)
def test_for_a_command_that_does_not_train_the_stage_is_reported(
    launch: Launch, tmp_path: Path, python: str, code: str, reason: str
) -> None:
    (tmp_path / "script.py").write_text(code)
    done = launch("check", "--json", tmp_path / "v.json", "--", python, "script.py")
    assert done.returncode == 4
    assert verdict(tmp_path / "v.json")["reason"] == f"no step was recorded: {reason}"
    assert f"gradledger: no optimizer step was recorded: {reason}\n" in done.stderr


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


COMPILED = """
import torch
import torch.nn.functional as F

model = torch.nn.Linear(4, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

@torch.compile(backend="aot_eager", dynamic=True)
def loss_of(rows, classes):
    return F.cross_entropy(model(rows), classes)

print(type(torch.compile(model)).__name__)
for step in range(4):
    for rows in (3, 5):
        (loss_of(torch.randn(rows, 4), torch.randint(3, (rows,))) / 2).backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_a_compiled_loss_is_seen_because_a_check_does_not_compile(
    launch: Launch, tmp_path: Path
) -> None:
    (tmp_path / "script.py").write_text(COMPILED)
    done = launch("check", "--json", tmp_path / "v.json", "--", "python", "script.py")
    assert done.returncode == 1, done.stderr
    assert [finding["rule"] for finding in verdict(tmp_path / "v.json")["findings"]] == [UNEQUAL]
    assert done.stdout == "OptimizedModule\n"
    assert "trained without torch.compile" in done.stderr


def test_without_steps_allow_incomplete_changes_nothing(launch: Launch) -> None:
    assert launch("check", "--allow-incomplete", "--", "true").returncode == 4


def test_max_steps_ends_the_command_without_a_failure(launch: Launch, tmp_path: Path) -> None:
    command = train(CORRECTED, 1_000_000)  # longer than a test may take
    done = launch("check", "--max-steps", 5, "--json", tmp_path / "v.json", "--", *command)
    report = verdict(tmp_path / "v.json")
    assert done.returncode == 0, done.stderr
    assert 5 <= report["steps"] < 1_000_000


@pytest.mark.parametrize("path", [os.environ["PATH"], "/nowhere"])
def test_a_script_alone_is_run_by_this_python(launch: Launch, tmp_path: Path, path: str) -> None:
    """The environment of gradledger need not be activated."""
    (tmp_path / "script.py").write_text("import sys; print(sys.executable, *sys.argv[1:])")
    done = launch("check", "--json", tmp_path / "v.json", "script.py", "word", PATH=path)
    assert (done.returncode, done.stdout) == (4, f"{sys.executable} word\n")
    assert verdict(tmp_path / "v.json")["reason"].startswith("no step was recorded: Python ran; ")


def test_a_severity_below_fail_on_does_not_fail_the_check(launch: Launch, tmp_path: Path) -> None:
    # divided by twice the tokens: the balance is 0.5 in every step, which is a warning at most
    text = TRAIN.read_text().replace("loss * ranks / count", "loss * ranks / (2 * count)")
    (tmp_path / "halved.py").write_text(text)
    command = ["python", tmp_path / "halved.py", CORRECTED, "6"]
    done = launch("check", "--fail-on", "error", "--json", tmp_path / "v.json", "--", *command)
    severities = {finding["severity"] for finding in verdict(tmp_path / "v.json")["findings"]}
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
    assert (done.returncode, verdict(tmp_path / "v.json")["steps"]) == (0, 3)


def test_an_interrupt_reaches_the_command(environ: dict[str, str]) -> None:
    waits = "import signal; print('ready', flush=True); signal.pause()"
    command = ["check", "--", sys.executable, "-c", waits]
    process = forkserver.Python([*CLI, *command], environ, server="service")
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    assert "gradledger: interrupted" in process.communicate(HANGS)[1]
    assert process.returncode == 3


def test_an_acknowledged_finding_is_shown_and_does_not_fail_the_check(
    launch: Launch, tmp_path: Path
) -> None:
    acknowledgement = f"{UNEQUAL}=lengths are meant to differ"
    command = ["--acknowledge", acknowledgement, "--", *train(CLASSIC, 6)]
    done = launch("check", "--json", tmp_path / "v.json", *command)
    report = verdict(tmp_path / "v.json")
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
    command = ["check", "--json", str(report), "--", "python", str(script)]
    done = launch(*command, "mean-of-means", "6")
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(report.read_text())["verdict"] == "balanced"


def _without_future(text: str) -> str:
    return text.replace("from __future__ import annotations\n", "")
