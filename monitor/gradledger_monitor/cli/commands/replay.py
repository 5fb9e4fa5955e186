"""``gradledger replay``: a stored run judged once more, and what would have been said otherwise."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
from pydantic import ValidationError

from gradledger_monitor.cli.options import GivenDatabase, settings
from gradledger_monitor.cli.run_argument import looking_at
from gradledger_monitor.common.json_floats import json_safe
from gradledger_monitor.config.settings import RuleSettings, setting_names
from gradledger_monitor.model.findings import EvaluationResult
from gradledger_monitor.reports.terminal import console, report
from gradledger_monitor.reports.verdict_json import verdict_json
from gradledger_monitor.rules.overrides import RuleOverrides
from gradledger_monitor.runs.replay import CannotReplay
from gradledger_monitor.runs.replay import replay as judge_again
from gradledger_monitor.store.runs import queries
from gradledger_monitor.workers.runtime_overrides import RuntimeOverrides

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def replay(
    run: Annotated[
        str, typer.Argument(help="A run's id or name; or an archive or log that holds it.")
    ],
    rules: Annotated[
        Path | None,
        typer.Option(help="TOML with rules_off and thresholds.", exists=True, dir_okay=False),
    ] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write the verdict there.", dir_okay=False)
    ] = None,
    db: GivenDatabase = None,
) -> None:
    """Judge a stored run once more, with other thresholds; nothing stored is touched.

    Exits 0 when it says what is stored, 1 when something comes out otherwise.
    """
    given = settings(db=db)
    said = _choices(rules) if rules else None
    with looking_at(run, db) as found:
        choices = said or RuntimeOverrides(given, found.store).rule_overrides()
        row = queries.get_run(found.store, found.run)
        assert row is not None
        before = queries.evaluation(found.store, row.id)
        try:
            now = judge_again(found.store, row.id, choices)
        except CannotReplay as error:
            raise typer.BadParameter(str(error)) from error
    out = console(sys.stdout)
    out.print(report(row.name, row.steps, row.world_size, now))
    if json_file:
        told = verdict_json(row.id, row.steps, row.world_size, now)
        json_file.write_text(json.dumps(json_safe(told), indent=2) + "\n")
    moved = list(differences(before, now))
    for line in moved or ["the same as what is stored"]:
        out.print(line)
    raise typer.Exit(1 if moved else 0)


def _choices(path: Path) -> RuleOverrides:
    """What a file says about the rules."""
    try:
        said = tomllib.loads(path.read_text(encoding="utf-8"))
        if unknown := sorted(said.keys() - setting_names()):
            raise ValueError(f"{path}: there is no setting {', '.join(unknown)}")
        off, thresholds = said.get("rules_off", []), said.get("thresholds", {})
        return RuleSettings(rules_off=off, thresholds=thresholds).rule_overrides
    except (ValidationError, ValueError) as error:
        raise typer.BadParameter(str(error), param_hint="--rules") from error


def differences(before: EvaluationResult, now: EvaluationResult) -> Iterator[str]:
    """What one judgement says and the other does not."""
    was = {(f.rule, f.optimizer): f for f in before.findings}
    is_ = {(f.rule, f.optimizer): f for f in now.findings}
    if before.verdict != now.verdict:
        yield f"verdict: {before.verdict} to {now.verdict}"
    yield from (f"new: {f.rule} from step {f.first_step}" for k, f in is_.items() if k not in was)
    yield from (f"gone: {f.rule} from step {f.first_step}" for k, f in was.items() if k not in is_)
    for key in sorted(was.keys() & is_.keys()):
        for what in ("severity", "first_step", "last_step", "steps"):
            old, new = getattr(was[key], what), getattr(is_[key], what)
            if old != new:
                yield f"{key[0]}: {what.replace('_', ' ')} {old} to {new}"
