"""The version has one source: ``hooks/gradledger/__init__.py``."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import gradledger
from gradledger import cli
from gradledger_monitor.app import create_app
from gradledger_monitor.config.settings import Settings

ROOT = Path(__file__).parents[2]
SOURCE = "hooks/gradledger/__init__.py"
FOLDERS = ("hooks", "monitor", "web", "migrations", "deploy", "docs", "examples", ".ci", ".github")
TEXTS = ("", ".py", ".md", ".toml", ".yml", ".html", ".js", ".sh", ".conf")


def texts() -> Iterator[Path]:
    """The files that are shipped or read, without generated ones."""
    for path in (*ROOT.iterdir(), *(file for name in FOLDERS for file in (ROOT / name).rglob("*"))):
        if path.is_file() and path.suffix in TEXTS:
            yield path


def test_no_other_file_states_the_version() -> None:
    version = re.compile(rf"(?<![\d.]){re.escape(gradledger.__version__)}(?![\d.])")
    stating = {
        path.relative_to(ROOT).as_posix() for path in texts() if version.search(path.read_text())
    }
    assert stating == {SOURCE, "CHANGELOG.md"}


def test_packages_read_the_version_from_there() -> None:
    project = (ROOT / "pyproject.toml").read_text()
    assert 'dynamic = ["version"]' in project
    assert f'[tool.hatch.version]\npath = "{SOURCE}"' in project


def test_the_newest_release_in_the_changelog_is_this_version() -> None:
    releases = re.findall(r"^## \[(\d[^]]*)\] - (\S+)$", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert releases[0][0] == gradledger.__version__


def test_the_command_line_prints_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["gradledger", "--version"])
    assert cli.main() == 0
    assert capsys.readouterr().out == f"gradledger {gradledger.__version__}\n"


def test_the_api_states_it(tmp_path: Path) -> None:
    app = create_app(Settings.model_construct(db=f"sqlite:///{tmp_path / 'a.db'}"))
    assert app.openapi()["info"]["version"] == gradledger.__version__
