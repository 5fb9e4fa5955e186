"""``gradledger compare``: did this change move the balance?"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from gradledger_monitor.cli.options import GivenDatabase
from gradledger_monitor.cli.run_argument import looking_at
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

_NAMES = {
    "samples": "effective batch, samples",
    "tokens": "effective batch, tokens",
    "micro_batches": "micro-batches in a step",
    "lr": "learning rate",
    "balance": "balance B",
    "misallocation": "misallocation d",
}


def compare(
    before: Annotated[str, typer.Argument(help="A run's id or name, an archive, or a log.")],
    after: Annotated[str, typer.Argument(help="The one that is held against it.")],
    tolerance: Annotated[
        float, typer.Option(min=0, help="By which the balance may move, relatively.")
    ] = TOLERANCE,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write the comparison there.", dir_okay=False)
    ] = None,
    db: GivenDatabase = None,
) -> None:
    """Hold two runs against each other.

    Exits 1 when the second one moved the balance: a worse verdict, a new finding, another
    contract, or B or d beyond the tolerance. A batch or learning rate that differs is only shown.
    """
    with looking_at(before, db) as found:
        a = read_run(found.store, found.run)
    with looking_at(after, db) as found:
        b = read_run(found.store, found.run)
    why = list(regressions(a, b, tolerance))
    _show(a, b, why)
    if json_file:
        told = {"before": _told(a), "after": _told(b), "moved": why}
        json_file.write_text(json.dumps(json_safe(told), indent=2) + "\n", encoding="utf-8")
    raise typer.Exit(1 if why else 0)


def _rows(one: ComparedRun) -> dict[str, str]:
    figures = {name: _figure(one.metrics[key]) for key, name in _NAMES.items()}
    return {
        "verdict": one.evaluation.verdict,
        **figures,
        "ranks": str(one.run.world_size),
        "contract": one.contract or "none",
        "steps": str(one.run.steps),
        "tokens": str(one.run.tokens),
        "findings": ", ".join(sorted(one.open_rules)) or "none",
    }


def _show(a: ComparedRun, b: ComparedRun, why: list[str]) -> None:
    out = console(sys.stdout)
    table = Table("", printable(a.run.name), printable(b.run.name), "", box=None)
    was, now = _rows(a), _rows(b)
    for name in was:
        table.add_row(name, was[name], now[name], "" if was[name] == now[name] else "differs")
    common = common_tokens(a, b)
    for share in (0.25, 0.5, 1.0) if common else ():
        values = [_figure(loss_at(one, common * share)) for one in (a, b)]
        table.add_row(f"loss after {common * share:.4g} tokens", *values, "")
    out.print(table)
    out.print("\n".join(f"moved: {line}" for line in why) or "the balance did not move")


def _told(one: ComparedRun) -> dict[str, object]:
    return {
        "run": one.run.id,
        "name": one.run.name,
        "verdict": one.evaluation.verdict,
        "findings": sorted(one.open_rules),
        "contract": one.contract,
        "world_size": one.run.world_size,
        "steps": one.run.steps,
        "tokens_total": one.run.tokens,
        **one.metrics,
        "loss_by_tokens": [one.tokens, one.losses],
    }


def _figure(value: float | None) -> str:
    return "not measured" if value is None else f"{value:.5g}"
