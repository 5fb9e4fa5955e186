"""Tables of commands: for a person at a terminal, and for programs that read lines."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from rich.text import Text

from gradledger_monitor.cli import tables
from gradledger_monitor.cli.tables import cell, show, table

LONG = "channel-" * 20


def shown(capsys: pytest.CaptureFixture[str]) -> list[str]:
    rows = table("name", "state", "rows", right=("rows",))
    rows.add_row(cell(LONG), cell("[bold]dead\x1b[31m", "red"), "7")
    rows.add_row("b", "enabled", "1,234")
    show(rows, cell("a hint"))
    return capsys.readouterr().out.splitlines()


def test_a_file_gets_one_plain_line_for_each_row(capsys: pytest.CaptureFixture[str]) -> None:
    lines = shown(capsys)
    assert [line.split()[0] for line in lines] == ["name", LONG, "b", "a"]
    assert "[bold]dead" in lines[1] and not any("\x1b" in line for line in lines)
    assert lines[1].rstrip().endswith("    7") and lines[2].rstrip().endswith("1,234")


def test_a_terminal_gets_colours_and_rows_that_fit(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = Console(
        file=io.StringIO(), force_terminal=True, width=60, color_system="standard", markup=False
    )
    monkeypatch.setattr(tables, "console", lambda _: terminal)
    shown(capsys)
    text = terminal.file.getvalue()  # type: ignore[attr-defined]
    assert "\x1b[31m[bold]dead" in text and "\x1b[1mname" in text
    assert all(len(Text.from_ansi(line)) <= 60 for line in text.splitlines())
