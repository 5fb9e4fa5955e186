"""``gradledger replay``: evaluate a stored run again, and print the differences."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
from pydantic import ValidationError

from gradledger_monitor.cli.options import DatabaseOption, settings
from gradledger_monitor.cli.run_argument import open_run
from gradledger_monitor.common.json_floats import json_safe
from gradledger_monitor.config.settings import RuleSettings, setting_names
from gradledger_monitor.model.findings import EvaluationResult
from gradledger_monitor.reports.terminal import console, report
from gradledger_monitor.reports.verdict_json import verdict_json
from gradledger_monitor.rules.overrides import RuleOverrides
from gradledger_monitor.runs.replay import CannotReplay
from gradledger_monitor.runs.replay import replay as replay_run
from gradledger_monitor.store.runs import queries
from gradledger_monitor.workers.runtime_overrides import RuntimeOverrides

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def replay(
    run: Annotated[str, typer.Argument(help="The id or name of a run, an archive, or a log.")],
    rules: Annotated[
        Path | None,
        typer.Option(
            help="A TOML file with rules_off and thresholds.", exists=True, dir_okay=False
        ),
    ] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write the verdict as JSON.", dir_okay=False)
    ] = None,
    db: DatabaseOption = None,
) -> None:
    """Evaluate a stored run again, with other thresholds. The stored verdict stays.

    Exits 0 if the result is the stored one, 1 if it differs.
    """
    current = settings(db=db)
    overrides = _rule_overrides(rules) if rules else None
    with open_run(run, db) as opened:
        overrides = overrides or RuntimeOverrides(current, opened.store).rule_overrides()
        row = queries.get_run(opened.store, opened.run)
        assert row is not None
        before = queries.evaluation(opened.store, row.id)
        try:
            after = replay_run(opened.store, row.id, overrides)
        except CannotReplay as error:
            raise typer.BadParameter(str(error)) from error
    output = console(sys.stdout)
    output.print(report(row.name, row.steps, row.world_size, after), crop=False)
    if json_file:
        verdict = verdict_json(row.id, row.steps, row.world_size, after)
        json_file.write_text(json.dumps(json_safe(verdict), indent=2) + "\n")
    changes = list(differences(before, after))
    for line in changes or ["no difference from the stored verdict"]:
        output.print(line)
    raise typer.Exit(1 if changes else 0)


def _rule_overrides(path: Path) -> RuleOverrides:
    """The rule settings in a TOML file."""
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
        if unknown := sorted(document.keys() - setting_names()):
            raise ValueError(f"{path}: there is no setting {', '.join(unknown)}")
        off, thresholds = document.get("rules_off", []), document.get("thresholds", {})
        return RuleSettings(rules_off=off, thresholds=thresholds).rule_overrides
    except (ValidationError, ValueError) as error:
        raise typer.BadParameter(str(error), param_hint="--rules") from error


def differences(before: EvaluationResult, after: EvaluationResult) -> Iterator[str]:
    """The differences between two evaluations, one line each."""
    old = {(f.rule, f.optimizer): f for f in before.findings}
    new = {(f.rule, f.optimizer): f for f in after.findings}
    if before.verdict != after.verdict:
        yield f"verdict: {before.verdict} to {after.verdict}"
    yield from (f"new: {f.rule} from step {f.first_step}" for k, f in new.items() if k not in old)
    yield from (f"gone: {f.rule} from step {f.first_step}" for k, f in old.items() if k not in new)
    for key in sorted(old.keys() & new.keys()):
        for name in ("severity", "first_step", "last_step", "steps"):
            was, now = getattr(old[key], name), getattr(new[key], name)
            if was != now:
                yield f"{key[0]}: {name.replace('_', ' ')} {was} to {now}"
