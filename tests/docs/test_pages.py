"""The documentation builds without a warning, and what it shows is what there is."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
import typer

import gradledger
from gradledger.api import Ledger
from gradledger_monitor.api.schemas import BatchResult
from gradledger_monitor.app import create_app
from gradledger_monitor.cli import app
from gradledger_monitor.config.settings import Settings

ROOT = Path(__file__).parents[2]
PAGES = sorted([*(ROOT / "docs").glob("*.md"), *ROOT.glob("*.md"), ROOT / "examples" / "README.md"])
# of the commands that the hooks have without the service
HOOKS_OPTIONS = {"run": {"--name", "--project", "--tag", "--url"}, "doctor": set[str]()}

each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


@each_page
def test_python_on_a_page_is_python_and_calls_what_there_is(page: Path) -> None:
    for block in re.findall(r"^ *```python[^\n]*\n(.*?)^ *```", page.read_text(), re.M | re.S):
        for node in ast.walk(ast.parse(dedent(block))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                _holds(node, node.func)


def _holds(call: ast.Call, called: ast.Attribute) -> None:
    owner = getattr(called.value, "id", None)
    if owner == "gradledger":
        signature = inspect.signature(getattr(gradledger, called.attr))
    elif owner == "ledger":
        signature = inspect.signature(getattr(Ledger(None), called.attr))
    else:
        return
    named = {keyword.arg: None for keyword in call.keywords if keyword.arg}
    signature.bind(*[None] * len(call.args), **named)


@each_page
def test_every_command_on_a_page_is_one(page: Path) -> None:
    shown = re.findall(r"^(?:    |\$ )(gradledger [a-z].*?)(?:  +#.*)?$", page.read_text(), re.M)
    inline = re.findall(r"`(gradledger [a-z][^`]*)`", page.read_text())
    for line in [*shown, *inline]:
        words = line.replace("[", " ").replace("]", " ").split(" -- ")[0].split()
        options = {word.partition("=")[0] for word in words if word.startswith("--")}
        assert options <= known_options(words[1:], line), line


def known_options(words: list[str], line: str) -> set[str]:
    """The options of the command that these words name."""
    if words[0] in HOOKS_OPTIONS:
        return HOOKS_OPTIONS[words[0]]
    command: Any = typer.main.get_command(app)
    for word in words[0].split("|"):
        command = _below(command, word, line)
    if len(words) > 1 and hasattr(command, "commands"):
        command = _below(command, words[1].partition("|")[0], line)
    return {option for parameter in command.params for option in parameter.opts}


def _below(group: Any, name: str, line: str) -> Any:
    commands = getattr(group, "commands", {})
    assert name in commands, f"no such command: {line}"
    return commands[name]


def test_the_readme_has_the_figures_of_the_museum() -> None:
    rows = (ROOT / "docs" / "detection.md").read_text().splitlines()
    figures = [row.strip("| ").split(" | ") for row in rows if re.search(r"\| \d+ of \d+ \|$", row)]
    found = {name: figure.split(" of ") for name, figure in figures}
    readme = (ROOT / "README.md").read_text()
    for sentence in (
        "{} of {} scripts with a mistake".format(*found["named correctly"]),
        "{} re-create one public report".format(*found["re-create one public report"]),
        "{} false alarms on the {} corrected twins".format(*found["false alarms on twins"]),
        "{} on {} healthy scripts".format(*found["false alarms on look-alikes"]),
    ):
        assert sentence in readme


@each_page
def test_a_link_to_a_file_leads_to_one(page: Path) -> None:
    linked = re.findall(r"\]\((?!https?:)([^)#]+)(?:#[^)]*)?\)", page.read_text())
    assert [
        link
        for link in linked
        if not (page.parent / link).exists() and not link.startswith("reference/")  # written later
    ] == []


def test_the_documentation_builds_and_refers_to_everything(tmp_path: Path) -> None:
    build = [sys.executable, "-W", "ignore", "-m", "mkdocs", "build", "--strict"]
    done = subprocess.run(build, cwd=ROOT, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    site = ROOT / "build" / "site"
    routes = create_app(Settings.model_construct(db=f"sqlite:///{tmp_path / 'a.db'}")).openapi()
    shown = (site / "reference" / "http.html").read_text()
    assert [path for path in routes["paths"] if path not in shown] == []
    commands = (site / "reference" / "commands.html").read_text()
    replies = (site / "reference" / "records.html").read_text().partition('id="replies"')[2]
    assert [name for name in (*BatchResult.model_fields, "verdict") if name not in replies] == []
    root = typer.main.get_command(app)
    assert [name for name in getattr(root, "commands", {}) if name not in commands] == []


def test_make_dist_runs_every_way_to_install() -> None:
    page = (ROOT / "docs" / "installation.md").read_text()
    ways = re.findall(r"^    (pipx?|uv tool|uvx) .*'gradledger(\[.+?\])'", page, re.M)
    assert {tool for tool, _ in ways} == {"pip", "pipx", "uv tool", "uvx"}
    script = (ROOT / ".ci" / "dist").read_text().replace('"', "")
    for tool, extras in ways:
        assert re.search(rf"/{tool} .*{re.escape(extras)}", script), (tool, extras)
