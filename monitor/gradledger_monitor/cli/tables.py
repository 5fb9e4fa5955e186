"""Tables of commands: fitted to a terminal; in a pipe or a file, one line for each row."""

from __future__ import annotations

import sys
from typing import Literal

from rich.table import Table
from rich.text import Text

from gradledger_monitor.common.sanitize import printable
from gradledger_monitor.reports.terminal import console

WIDE = 10_000  # a row of a file is never wrapped: programs read lines


def table(*columns: str, right: tuple[str, ...] = ()) -> Table:
    """An empty table; the columns in ``right`` have numbers."""
    rows = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for name in columns:
        justify: Literal["left", "right"] = "right" if name in right else "left"
        rows.add_column(name, justify=justify, overflow="fold")
    return rows


def cell(text: str, style: str = "") -> Text:
    """A text for a cell, without control characters and markup."""
    return Text(printable(text), style)


def show(*rows: Table | Text) -> None:
    """Print tables and lines."""
    output = console(sys.stdout)
    if not output.is_terminal:
        output.width = WIDE
    for row in rows:
        output.print(row, soft_wrap=isinstance(row, Text))
