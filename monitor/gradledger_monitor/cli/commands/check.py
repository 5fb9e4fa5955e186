"""``gradledger check``: run a command, judge it here and now, and answer by exit status."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer
from pydantic import ValidationError

from gradledger import autostart
from gradledger.autostart import unreachable
from gradledger.settings import EVERY_STEP, NO_SPOOL
from gradledger_monitor.common.json_floats import json_safe
from gradledger_monitor.config.settings import RuleSettings
from gradledger_monitor.evaluation.merge import anything_measured, merge_results
from gradledger_monitor.gate import child_process
from gradledger_monitor.gate.github import annotated
from gradledger_monitor.gate.junit import junit
from gradledger_monitor.gate.private_service import PrivateService, private_service
from gradledger_monitor.gate.result import Checked, Gate, baseline
from gradledger_monitor.gate.sarif import sarif
from gradledger_monitor.model.findings import Acknowledgement, EvaluationResult
from gradledger_monitor.reports.terminal import console, report
from gradledger_monitor.reports.verdict_json import verdict_json
from gradledger_monitor.rules.docs import rules_by_id
from gradledger_monitor.rules.overrides import RuleOverrides
from gradledger_monitor.store.alerts import acknowledgements
from gradledger_monitor.store.alerts.acknowledgements import NoSuchFinding
from gradledger_monitor.store.database import Store
from gradledger_monitor.store.runs import queries

FINDINGS, COMMAND_FAILED, NOTHING_MEASURED = 1, 3, 4
MOST_RUNS = 10_000  # that one command may start


class FailOn(str, Enum):
    """The least severity that makes the check fail."""

    info = "info"
    warning = "warning"
    error = "error"


@dataclass(frozen=True)
class Outputs:
    """Where the verdict goes besides the terminal; None is nowhere."""

    json: Path | None
    junit: Path | None
    sarif: Path | None
    github: bool

    def check(self) -> None:
        """End where a file could not be written once all has run."""
        for option in ("json", "junit", "sarif"):
            file: Path | None = getattr(self, option)
            if file and not file.absolute().parent.is_dir():
                why = f"there is no folder {file.parent}"
                raise typer.BadParameter(why, param_hint=f"--{option}")


def check(
    command: Annotated[list[str], typer.Argument(help="What to run, after --.")],
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write the verdict there.", dir_okay=False)
    ] = None,
    max_steps: Annotated[
        int | None, typer.Option(min=1, help="Stop the command once so many optimizer steps came.")
    ] = None,
    fail_on: Annotated[
        FailOn, typer.Option(help="The least severity that makes the check fail.")
    ] = FailOn.warning,
    stop: Annotated[
        bool, typer.Option("--stop", help="Stop the command at the first finding that fails it.")
    ] = False,
    name: Annotated[str | None, typer.Option(help="What to call the run.")] = None,
    acknowledge: Annotated[
        list[str] | None,
        typer.Option(help="RULE=NOTE: it is known; shown, and no reason to fail.", metavar="TEXT"),
    ] = None,
    baseline_file: Annotated[
        Path | None,
        typer.Option(
            "--baseline",
            help="A verdict written by --json: what it has found is no reason to fail.",
            exists=True,
            dir_okay=False,
        ),
    ] = None,
    junit_file: Annotated[
        Path | None, typer.Option("--junit", help="Write JUnit XML there.", dir_okay=False)
    ] = None,
    sarif_file: Annotated[
        Path | None, typer.Option("--sarif", help="Write SARIF 2.1.0 there.", dir_okay=False)
    ] = None,
    github: Annotated[
        bool,
        typer.Option("--github", help="Annotate a run of GitHub Actions.", envvar="GITHUB_ACTIONS"),
    ] = False,
) -> None:
    """Run a command and judge it here and now.

    Exits 0 when there is nothing to report, 1 with findings that were not acknowledged, 2 on bad
    usage, 3 when the command itself failed, 4 when nothing could be measured.
    """
    outputs = Outputs(json_file, junit_file, sarif_file, github)
    outputs.check()
    if stop and baseline_file:
        why = "the training that it stops knows no baseline; use one of the two"
        raise typer.BadParameter(why, param_hint="--stop")
    known = _known(acknowledge or [])
    gate = Gate(fail_on.value, _baseline(baseline_file))
    name = name or autostart.default_name(command)
    with private_service(_choices()) as service, TemporaryDirectory(prefix="gradledger-") as seen:
        ended = _run(command, name, service, Path(seen), max_steps, fail_on if stop else None)
        why = _without_steps(command, Path(seen))
        service.evaluate_all()
        unseen = [rule for rule, note in known if not _acknowledge(service.store, rule, note)]
        checked = _checked(service.store)
    answer = merge_results([one.evaluation for one in checked])
    _show(checked, ended, why)
    _write(outputs, _as_json(name, checked, answer), checked, gate, _script(command))
    for rule in unseen:
        typer.echo(f"gradledger check: {rule} was acknowledged, and found nothing", err=True)
    raise typer.Exit(_status(answer, ended, gate, stop))


def _choices() -> RuleOverrides:
    """What the environment says about the rules; nothing else of it is meant for this service."""
    try:
        return RuleSettings().rule_overrides
    except ValidationError as error:
        raise typer.BadParameter(str(error)) from error


def _baseline(path: Path | None) -> dict[str, str]:
    """What was found before, by rule, with its severity."""
    try:
        return baseline(path.read_text(encoding="utf-8")) if path else {}
    except (OSError, ValueError) as error:
        raise typer.BadParameter(f"{path}: {error}", param_hint="--baseline") from error


def _script(command: list[str]) -> str:
    """What of the command is a file of Python: where its findings are shown."""
    paths = (Path(word) for word in command if word.endswith(".py"))
    return next((Path(os.path.relpath(p)).as_posix() for p in paths if p.is_file()), ".")


def _known(acknowledged: list[str]) -> list[tuple[str, str]]:
    """Rules and notes, as the command line gives them."""
    pairs = [
        (rule.strip(), note.strip()) for rule, _, note in (a.partition("=") for a in acknowledged)
    ]
    for rule, note in pairs:
        if rule not in rules_by_id() or not note:
            why = f"{rule!r} is not RULE=NOTE with a rule that `gradledger rules` lists"
            raise typer.BadParameter(why, param_hint="--acknowledge")
    return pairs


def _acknowledge(store: Store, rule: str, note: str) -> bool:
    """Whether the rule found anything in any run of the command."""
    said, found = Acknowledgement(note, None, time.time()), False
    for run in queries.list_runs(store, MOST_RUNS):
        with suppress(NoSuchFinding):
            acknowledgements.acknowledge(store, run.id, rule, said)
            found = True
    return found


def _run(
    command: list[str],
    name: str,
    service: PrivateService,
    seen: Path,
    max_steps: int | None,
    stop: FailOn | None,
) -> child_process.Ended | None:
    ours = ("GRADLEDGER_RUN", "GRADLEDGER_TOKEN")
    base = {key: value for key, value in os.environ.items() if key not in ours}
    env = autostart.environment(base, command, name=name, url=service.url)
    env.setdefault("GRADLEDGER_OVERHEAD", EVERY_STEP)  # a run of few steps, to be known whole
    env[autostart.STAGES] = str(seen)
    env["GRADLEDGER_SPOOL"] = NO_SPOOL  # nobody will ever speak with this service again
    # the verdict says it all at the end; what else a person chose holds
    env["GRADLEDGER_ON_FINDING"] = f"stop:{stop.value}" if stop else _chosen(base)

    def enough() -> bool:
        return max_steps is not None and _steps(service.store) >= max_steps

    try:
        return child_process.run(command, env, enough)
    except OSError as error:
        typer.echo(f"gradledger check: {command[0]}: {error.strerror}", err=True)
        return None


def _chosen(environment: Mapping[str, str]) -> str:
    return environment.get("GRADLEDGER_ON_FINDING", "off")


def _steps(store: Store) -> int:
    return max((run.steps for run in queries.list_runs(store, MOST_RUNS)), default=0)


def _checked(store: Store) -> list[Checked]:
    runs = sorted(queries.list_runs(store, MOST_RUNS), key=lambda run: run.started)
    return [
        Checked(run.name, run.steps, run.world_size, queries.evaluation(store, run.id))
        for run in runs
        if run.steps
    ]


def _as_json(name: str, checked: list[Checked], answer: EvaluationResult) -> dict[str, object]:
    steps = sum(one.steps for one in checked)
    ranks = max((one.ranks for one in checked), default=0)
    return verdict_json(name, steps, ranks, answer)


def _write(
    outputs: Outputs, told: dict[str, object], checked: list[Checked], gate: Gate, script: str
) -> None:
    if outputs.json:
        outputs.json.write_text(json.dumps(json_safe(told), indent=2) + "\n")
    if outputs.junit:
        outputs.junit.write_text(junit(checked, gate), encoding="utf-8")
    if outputs.sarif:
        outputs.sarif.write_text(sarif(checked, gate, script), encoding="utf-8")
    if outputs.github:
        for line in annotated(checked, gate, script):
            typer.echo(line)


def _without_steps(command: list[str], seen: Path) -> str:
    """How far the processes of the command came, for one in which no optimizer step was seen."""
    if (seen / "backward").exists():
        return "backward ran, but no optimizer stepped"
    if (seen / "torch").exists():
        return "torch was imported, but backward never ran"
    if (seen / "python").exists():
        return "Python ran, but never imported torch"
    why = unreachable.reason(command) or (
        "the command started no Python, or only ones without PYTHONPATH (python -I, sudo, ssh, "
        f"docker). If it trains, run `gradledger check` in there, or {unreachable.WORKAROUND}"
    )
    return f"no process reported: {why}"


def _show(checked: list[Checked], ended: child_process.Ended | None, why: str) -> None:
    """On stderr: what the command says on stdout stays the command's."""
    out = console(sys.stderr)
    for one in checked:
        out.print(report(one.name, one.steps, one.ranks, one.evaluation))
    if not checked:
        out.print(f"gradledger: no optimizer step was seen: {why}", markup=False, soft_wrap=True)
    if ended is None or _failed(ended):
        out.print(
            f"gradledger: the command failed{f': {ended}' if ended else ''}", style="bold red"
        )


def _failed(ended: child_process.Ended) -> bool:
    return ended.status != 0 and not ended.stopped


def _status(
    answer: EvaluationResult, ended: child_process.Ended | None, gate: Gate, stop: bool
) -> int:
    failing = any(map(gate.fails, answer.findings))
    if ended is None or _failed(ended):
        return FINDINGS if ended and stop and failing else COMMAND_FAILED
    if not anything_measured(answer):
        return NOTHING_MEASURED
    return FINDINGS if failing else 0
