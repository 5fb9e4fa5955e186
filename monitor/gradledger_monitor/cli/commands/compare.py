"""``gradledger compare``: compare two runs; exits 1 if the balance moved."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from gradledger_monitor.cli.options import DatabaseOption
from gradledger_monitor.cli.run_argument import open_run
from gradledger_monitor.common.json_floats import json_safe
from gradledger_monitor.common.sanitize import printable
from gradledger_monitor.reports.terminal import console
from gradledger_monitor.runs.compare import (
    TOLERANCE,
    ComparedRun,
    common_tokens,
    loss_at,
    read_run,
    regressions,
)
from gradledger_web import formatting

_NAMES = {
    "samples": "effective batch, samples",
    "tokens": "effective batch, tokens",
    "micro_batches": "micro-batches per step",
    "lr": "learning rate",
    "balance": "balance B",
    "misallocation": "misallocation d",
}


def compare(
    before: Annotated[str, typer.Argument(help="The id or name of a run, an archive, or a log.")],
    after: Annotated[str, typer.Argument(help="The run to compare with it.")],
    tolerance: Annotated[
        float, typer.Option(min=0, help="The relative change of the balance that is accepted.")
    ] = TOLERANCE,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write the comparison as JSON.", dir_okay=False)
    ] = None,
    db: DatabaseOption = None,
) -> None:
    """Compare two runs.

    Exits 1 if the second run moved the balance: a worse verdict, a new finding, another contract,
    or a change of B or d above the tolerance. Batch and learning rate are shown only.
    """
    with open_run(before, db) as opened:
        first = read_run(opened.store, opened.run)
    with open_run(after, db) as opened:
        second = read_run(opened.store, opened.run)
    moved = list(regressions(first, second, tolerance))
    _print(first, second, moved)
    if json_file:
        document = {"before": _as_dict(first), "after": _as_dict(second), "moved": moved}
        json_file.write_text(json.dumps(json_safe(document), indent=2) + "\n", encoding="utf-8")
    raise typer.Exit(1 if moved else 0)


def _rows(compared: ComparedRun) -> dict[str, str]:
    figures = {name: _figure(key, compared.metrics[key]) for key, name in _NAMES.items()}
    return {
        "verdict": compared.evaluation.verdict,
        **figures,
        "ranks": str(compared.run.world_size),
        "contract": compared.contract or "none",
        "steps": formatting.count(compared.run.steps),
        "tokens": formatting.count(compared.run.tokens),
        "findings": ", ".join(sorted(compared.open_rules)) or "none",
    }


def _print(first: ComparedRun, second: ComparedRun, moved: list[str]) -> None:
    output = console(sys.stdout)
    table = Table("", printable(first.run.name), printable(second.run.name), "", box=None)
    old, new = _rows(first), _rows(second)
    for name in old:
        table.add_row(name, old[name], new[name], "" if old[name] == new[name] else "differs")
    common = common_tokens(first, second)
    for fraction in (0.25, 0.5, 1.0) if common else ():
        tokens = common * fraction
        losses = [_figure("loss", loss_at(compared, tokens)) for compared in (first, second)]
        table.add_row(f"loss after {formatting.plural(tokens, 'token')}", *losses, "")
    output.print(table)
    output.print("\n".join(f"moved: {line}" for line in moved) or "the balance did not move")


def _as_dict(compared: ComparedRun) -> dict[str, object]:
    return {
        "run": compared.run.id,
        "name": compared.run.name,
        "verdict": compared.evaluation.verdict,
        "findings": sorted(compared.open_rules),
        "contract": compared.contract,
        "world_size": compared.run.world_size,
        "steps": compared.run.steps,
        "tokens_total": compared.run.tokens,
        **compared.metrics,
        "loss_by_tokens": [compared.tokens, compared.losses],
    }


def _figure(key: str, value: float | None) -> str:
    if value is None:
        return "not measured"
    return formatting.percent(value) if key == "misallocation" else formatting.figure(value, 5)
