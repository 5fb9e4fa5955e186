"""`gradledger run` and `gradledger check` on interpreters that import torch themselves."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from helpers.command import CLI
from helpers.launching import (
    CLASSIC,
    CORRECTED,
    STARTED,
    UNEQUAL,
    Launch,
    bare_environment,
    train,
    verdict,
)
from helpers.patience import HANGS


def test_the_hooks_start_once_torch_is_imported(launch: Launch) -> None:
    done = launch("run", "--", sys.executable, "-c", STARTED)
    assert done.stdout.endswith(" True\n")
    assert done.stderr == ""


def test_a_folder_named_gradledger_does_not_hide_the_hooks(launch: Launch, tmp_path: Path) -> None:
    (tmp_path / "gradledger").mkdir()
    done = launch("run", "--", sys.executable, "-c", STARTED)
    assert done.stdout.endswith(" True\n"), done.stderr


def test_an_environment_without_gradledger_is_observed_too(launch: Launch, tmp_path: Path) -> None:
    target = bare_environment(tmp_path / "target")
    site = next(target.parents[1].glob("lib/python*/site-packages"))
    torch = find_spec("torch")
    assert torch and torch.origin
    (site / "torch.pth").write_text(str(Path(torch.origin).parents[1]))
    done = launch("run", "--", target, "-c", STARTED)
    assert done.stdout.endswith(" True\n"), done.stderr
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("command", "status", "rules"),
    [
        (["--", *train(CLASSIC, 6, python=sys.executable)], 1, [UNEQUAL]),
        (train(CORRECTED, 6)[1:], 0, []),  # the script alone
    ],
)
def test_a_training_is_checked(
    launch: Launch, tmp_path: Path, command: list[str], status: int, rules: list[str]
) -> None:
    done = launch("check", "--json", tmp_path / "v.json", *command, PATH="/nowhere")
    report = verdict(tmp_path / "v.json")
    assert done.returncode == status, done.stderr
    assert [finding["rule"] for finding in report["findings"]] == rules
    assert (report["steps"], report["ranks"], done.stdout) == (6, 1, "trained 6\n")


HIDDEN = """
import torch
class Loss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.square().sum() / 7
    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.saved_tensors[0] * 2 / 7
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for rows in (5, 9, 5, 8):
    Loss.apply(model(torch.randn(rows, 4))).backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.parametrize(
    ("program", "status", "words"),
    [
        (train(CLASSIC, 6, python=sys.executable), 1, r"1: findings that fail the check, \d+ s\r"),
        ([sys.executable, "-c", HIDDEN], 4, r"4: incomplete, \d+ s; --allow-incomplete makes"),
    ],
    ids=["findings", "incomplete"],
)
def test_at_a_terminal_the_exit_status_has_words_and_a_time(
    program: list[str], status: int, words: str
) -> None:
    leader, follower = os.openpty()
    command = [sys.executable, *CLI, "check", "--", *program]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=follower)
    os.close(follower)
    shown = b""
    with contextlib.suppress(OSError):  # Linux: the terminal has no other end any more
        while piece := os.read(leader, 4096):
            shown += piece
    os.close(leader)
    assert process.wait(HANGS) == status, shown
    assert re.search(f"gradledger: exit status {words}", shown.decode())


def test_the_ranks_of_one_command_are_one_run(launch: Launch, tmp_path: Path) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    command = [*torchrun, *train(CLASSIC, 4)[1:]]
    done = launch("check", "--json", tmp_path / "v.json", "--", *command)
    report = verdict(tmp_path / "v.json")
    assert done.returncode == 1, done.stderr
    assert (report["run"], report["steps"], report["ranks"]) == ("train", 4, 2)
    assert UNEQUAL in [finding["rule"] for finding in report["findings"]]
