"""The pages for operators: every setting as it is, every metric, no command that is none."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gradledger_monitor.cli import app
from gradledger_monitor.cli.commands.config import page
from gradledger_monitor.telemetry.metrics import Metrics
from helpers.sending import new_store

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "operations.md").read_text()
COMMANDS = re.findall(r"^    gradledger (?!run )([a-z].+?)(?:  +#.*)?$", PAGE, re.MULTILINE)


def test_the_page_of_settings_is_what_would_be_written_now() -> None:
    assert (DOCS / "settings.md").read_text() == page(), (
        "gradledger config --write docs/settings.md"
    )


def test_every_metric_is_explained(tmp_path: Path) -> None:
    store = new_store(tmp_path / "a.db")
    exposed = Metrics(store, lambda: 0).text().decode()
    store.close()
    documented = set(re.findall(r"^\| `(gradledger_\w+)`", PAGE, re.MULTILINE))
    names = set(re.findall(r"^# TYPE (\w+)", exposed, re.MULTILINE))
    assert documented == {name for name in names if not name.endswith("_created")}


@pytest.mark.parametrize("line", COMMANDS)
def test_every_command_is_one(line: str) -> None:
    words = line.split()
    done = CliRunner().invoke(app, [*words[: 2 if words[0] == "token" else 1], "--help"])
    assert done.exit_code == 0, done.output
    for option in re.findall(r"--[a-z-]+", line):
        assert option in done.output


def test_commands_are_shown() -> None:
    assert len(COMMANDS) >= 5
