"""`gradledger check --compiled`, where a part of the training stays inside ``torch.compile``."""

from __future__ import annotations

from pathlib import Path

from helpers import forkserver
from helpers.launching import Launch, verdict
from integration.launcher.test_check import COMPILED


def test_what_cannot_be_measured_exits_4_unless_it_is_allowed(
    launch: Launch, tmp_path: Path
) -> None:
    linear = "F.cross_entropy(model(rows), classes)"
    hidden = COMPILED.replace(linear, f"{linear}.sqrt()")  # the weights depend on the values
    (tmp_path / "script.py").write_text(hidden)
    python = forkserver.executable(tmp_path)
    compiled = ("check", "--compiled", "--json", tmp_path / "v.json")
    done = launch(*compiled, "--", python, "script.py")
    assert (done.returncode, verdict(tmp_path / "v.json")["verdict"]) == (4, "incomplete")
    assert "without torch.compile" not in done.stderr
    assert "--allow-incomplete" in done.stderr
    assert launch(*compiled, "--allow-incomplete", "--", python, "script.py").returncode == 0
