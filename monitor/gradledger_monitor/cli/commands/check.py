"""``gradledger check``: run a command against a private service; the exit status is the verdict."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer
from pydantic import ValidationError

from gradledger import autostart
from gradledger.autostart import activity, unreachable
from gradledger.delivery.http_client import Client
from gradledger.delivery.spool_file import SUFFIX
from gradledger.settings import EVERY_STEP, Settings
from gradledger_monitor.cli import options
from gradledger_monitor.common.json_floats import json_safe
from gradledger_monitor.common.sanitize import printable
from gradledger_monitor.config.settings import RuleSettings
from gradledger_monitor.evaluation.merge import merge_results
from gradledger_monitor.gate import child_process
from gradledger_monitor.gate.checked_runs import checked_run
from gradledger_monitor.gate.github import workflow_commands
from gradledger_monitor.gate.junit import junit
from gradledger_monitor.gate.private_service import PrivateService, private_service
from gradledger_monitor.gate.progress import Progress
from gradledger_monitor.gate.result import CheckedRun, Gate, read_baseline
from gradledger_monitor.gate.sarif import sarif
from gradledger_monitor.gate.send_runs import runs_here, send_runs
from gradledger_monitor.gate.version_control import version_control_of
from gradledger_monitor.model.code.revision import Revision
from gradledger_monitor.model.findings import Acknowledgement, EvaluationResult
from gradledger_monitor.reports.terminal import console
from gradledger_monitor.reports.verdict_json import verdict_json
from gradledger_monitor.rules.docs import rules_by_id
from gradledger_monitor.rules.overrides import RuleOverrides
from gradledger_monitor.runs.resolve import store_file
from gradledger_monitor.store.alerts import acknowledgements
from gradledger_monitor.store.alerts.acknowledgements import NoSuchFinding
from gradledger_monitor.store.database import Store
from gradledger_monitor.store.runs import queries
from gradledger_web.formatting import duration

FINDINGS, COMMAND_FAILED, INCOMPLETE = 1, 3, 4
MOST_RUNS = 10_000  # that one command may start
WITHOUT_COMPILE = (
    "gradledger: trained without torch.compile, so that any loss is seen (--compiled keeps it)"
)
MEANINGS = {
    0: "no findings that fail the check",
    FINDINGS: "findings that fail the check",
    COMMAND_FAILED: "the command failed",
    INCOMPLETE: "no optimizer step was recorded",
}
NOT_ALLOWED = "; --allow-incomplete makes that 0"
ALLOWED = "; --allow-incomplete allows that"


class FailOn(str, Enum):
    """The minimum severity that fails the check."""

    info = "info"
    warning = "warning"
    error = "error"


@dataclass(frozen=True)
class Outputs:
    """The files that the verdict is written to, besides the terminal."""

    json: Path | None
    junit: Path | None
    sarif: Path | None
    github: bool

    def check(self) -> None:
        """Refuse a file without a folder now, not after the training."""
        for option, file in (("json", self.json), ("junit", self.junit), ("sarif", self.sarif)):
            if file and not file.absolute().parent.is_dir():
                reason = f"{file}: the folder {file.parent} does not exist; create it first"
                raise typer.BadParameter(reason, param_hint=f"--{option}")

    def write(
        self, verdict: dict[str, object], runs: list[CheckedRun], gate: Gate, script: str
    ) -> None:
        """Write the verdict of the runs; findings are attached to ``script``."""
        if self.json:
            self.json.write_text(json.dumps(json_safe(verdict), indent=2) + "\n")
        if self.junit:
            self.junit.write_text(junit(runs, gate), encoding="utf-8")
        if self.sarif:
            document = sarif(runs, gate, script, version_control_of(script))
            self.sarif.write_text(document, encoding="utf-8")
        if self.github:
            for line in workflow_commands(runs, gate, script):
                typer.echo(line)


@dataclass(frozen=True)
class Destination:
    """The service that has pages for the runs; ``client`` if they are sent there."""

    url: str
    client: Client | None

    def lines(self, store: Store) -> list[str]:
        """Send the runs, or name the option that does; a line about each."""
        if self.client is not None:
            return list(send_runs(store, self.client, self.url))
        if sys.stderr.isatty() and runs_here(self.url):
            return [f"--send shows this run on {self.url}"]
        return []


@dataclass(frozen=True)
class Training:
    """The command to check, and when to stop it."""

    command: list[str]
    name: str
    max_steps: int | None
    stop: FailOn | None  # stop at the first finding of this severity
    compiled: bool  # whether torch.compile compiles


def check(
    command: Annotated[list[str], typer.Argument(help="The command to run, after --.")],
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write the verdict as JSON.", dir_okay=False)
    ] = None,
    max_steps: Annotated[
        int | None, typer.Option(min=1, help="Stop the command after this many optimizer steps.")
    ] = None,
    fail_on: Annotated[
        FailOn, typer.Option(help="The minimum severity that fails the check.")
    ] = FailOn.warning,
    stop: Annotated[
        bool, typer.Option("--stop", help="Stop the command at the first finding that fails it.")
    ] = False,
    allow_incomplete: Annotated[
        bool,
        typer.Option("--allow-incomplete", help="Exit 0 although something was not measured."),
    ] = False,
    compiled: Annotated[
        bool,
        typer.Option("--compiled", help="Compile as usual; some compiled losses are not measured."),
    ] = False,
    name: Annotated[str | None, typer.Option(help="The name of the run.")] = None,
    acknowledge: Annotated[
        list[str] | None,
        typer.Option(help="Accept a finding: shown, but does not fail.", metavar="RULE=NOTE"),
    ] = None,
    baseline_file: Annotated[
        Path | None,
        typer.Option(
            "--baseline",
            help="A verdict written by --json: its findings do not fail the check.",
            exists=True,
            dir_okay=False,
        ),
    ] = None,
    junit_file: Annotated[
        Path | None, typer.Option("--junit", help="Write JUnit XML.", dir_okay=False)
    ] = None,
    sarif_file: Annotated[
        Path | None, typer.Option("--sarif", help="Write SARIF 2.1.0.", dir_okay=False)
    ] = None,
    github: Annotated[
        bool,
        typer.Option("--github", help="Write GitHub annotations.", envvar="GITHUB_ACTIONS"),
    ] = False,
    send: Annotated[
        bool,
        typer.Option("--send", help="Send the run to the service at GRADLEDGER_URL, to its pages."),
    ] = False,
) -> None:
    """Run a command and evaluate its training. torch.compile is off, so that each loss is seen.

    Exits 0 without problems, 1 with findings that fail the check, 2 on bad usage, 3 if the command
    itself failed, 4 if the verdict is incomplete: something that applies could not be measured.
    """
    outputs = Outputs(json_file, junit_file, sarif_file, github)
    outputs.check()
    if stop and baseline_file:
        reason = "--stop ignores the baseline; use --stop or --baseline, not both"
        raise typer.BadParameter(reason, param_hint="--stop")
    gate = Gate(fail_on.value, _baseline(baseline_file))
    destination = _destination(send)
    command = autostart.with_python(command)
    training = Training(
        command,
        name or autostart.default_name(command),
        max_steps,
        fail_on if stop else None,
        compiled,
    )
    started = time.monotonic()
    accepted = _acknowledgements(acknowledge or [])
    runs, ended, reason = _run_and_evaluate(training, accepted, destination)
    result = merge_results([run.evaluation for run in runs])
    outputs.write(_verdict(training.name, runs, result, reason), runs, gate, _script(command))
    status = _status(result, ended, gate, stop)
    seconds = time.monotonic() - started
    status = _final_status(status, ended, bool(runs), allow_incomplete, seconds)
    raise typer.Exit(status)


# ---------------------------------------------------------------- options


def _destination(send: bool) -> Destination:
    """The service of this environment, to send the runs to, or only to name it."""
    settings = Settings.from_environment(os.environ)
    url = os.environ.get("GRADLEDGER_URL") or settings.url  # as written: the hooks ignore a bad one
    return Destination(url, options.client(url, settings, "--send") if send else None)


def _rule_overrides() -> RuleOverrides:
    """The rule settings of the environment. Its other settings are for another service."""
    try:
        return RuleSettings().rule_overrides
    except ValidationError as error:
        raise typer.BadParameter(options.problems(error)) from error
    except ValueError as error:  # invalid JSON in a variable
        raise typer.BadParameter(str(error)) from error


def _baseline(path: Path | None) -> dict[str, str]:
    """The accepted severities by rule."""
    try:
        return read_baseline(path.read_text(encoding="utf-8")) if path else {}
    except (OSError, ValueError) as error:
        raise typer.BadParameter(f"{path}: {error}", param_hint="--baseline") from error


def _script(command: list[str]) -> str:
    """The first Python file in the command: findings are attached to it."""
    paths = (Path(argument) for argument in command if argument.endswith(".py"))
    return next((Path(os.path.relpath(p)).as_posix() for p in paths if p.is_file()), ".")


def _acknowledgements(arguments: list[str]) -> list[tuple[str, str]]:
    """Rules and notes from RULE=NOTE."""
    pairs = [
        (rule.strip(), note.strip()) for rule, _, note in (a.partition("=") for a in arguments)
    ]
    for rule, note in pairs:
        if rule not in rules_by_id():
            reason = f"there is no rule {rule!r}; `gradledger rules` lists them"
            raise typer.BadParameter(reason, param_hint="--acknowledge")
        if not note:
            reason = f"{rule} needs a note: --acknowledge {rule}='why this is acceptable'"
            raise typer.BadParameter(reason, param_hint="--acknowledge")
    return pairs


# ---------------------------------------------------------------- running


def _run_and_evaluate(
    training: Training, acknowledged: list[tuple[str, str]], destination: Destination
) -> tuple[list[CheckedRun], child_process.ExitResult | None, str]:
    """Run the command, evaluate its records, print the reports, and send the runs.

    Also returns why no step was recorded, if none was.
    """
    with (
        private_service(_rule_overrides()) as service,
        TemporaryDirectory(prefix="gradledger-") as progress,
    ):
        ended = _run(training, service, Path(progress))
        reason = _reason_without_steps(training.command, Path(progress))
        uncompiled = (Path(progress) / "compile").exists()
        _store_spooled(service.store, _spool(Path(progress)))
        service.evaluate_all()
        unused = [r for r, note in acknowledged if not _acknowledge(service.store, r, note)]
        runs = _checked_runs(service.store)
        sent = destination.lines(service.store) if runs else []
    _print(runs, ended, reason)
    if uncompiled:
        typer.echo(WITHOUT_COMPILE, err=True)
    for rule in unused:
        typer.echo(f"gradledger check: --acknowledge {rule}: no such finding", err=True)
    for line in sent:
        typer.echo(f"gradledger: {line}", err=True)
    return runs, ended, reason


def _run(
    training: Training, service: PrivateService, progress: Path
) -> child_process.ExitResult | None:
    command = training.command

    list_runs = partial(queries.list_runs, service.store, MOST_RUNS)
    progress_lines = Progress(list_runs, training.max_steps, _write_progress, time.monotonic)

    def should_stop() -> bool:
        if sys.stderr.isatty():  # a file or a log of CI has no reader who waits
            progress_lines.update()
        return training.max_steps is not None and _steps(service.store) >= training.max_steps

    try:
        env = _environment(training, service.url, progress)
        return child_process.run(command, env, should_stop)
    except OSError as error:
        typer.echo(f"gradledger check: {command[0]}: {error.strerror}", err=True)
        return None


def _spool(progress: Path) -> Path:
    return progress / "spool"


def _store_spooled(store: Store, spool: Path) -> None:
    """Store what processes of the command could not send in time, as on a busy machine."""
    for file in sorted(spool.rglob(f"*{SUFFIX}")):
        store_file(store, file)


def _write_progress(text: str) -> None:
    typer.echo(typer.style(f"gradledger: {printable(text)}", dim=True), err=True, color=_colour())


def _colour() -> bool | None:
    """False where colours are not wanted; None for the default of the terminal."""
    return False if os.environ.get("NO_COLOR") else None


def _environment(training: Training, url: str, progress: Path) -> dict[str, str]:
    """The environment of the command; processes record in ``progress`` how far they come."""
    removed = ("GRADLEDGER_RUN", "GRADLEDGER_TOKEN")
    base = {key: value for key, value in os.environ.items() if key not in removed}
    env = autostart.environment(base, training.command, name=training.name, url=url)
    env.setdefault("GRADLEDGER_OVERHEAD", EVERY_STEP)  # a check has few steps: measure all
    env[autostart.STAGES] = str(progress)
    env[autostart.EAGER] = "0" if training.compiled else "1"
    env["GRADLEDGER_SPOOL"] = str(_spool(progress))
    env["GRADLEDGER_ON_FINDING"] = _on_finding(base, training.stop)
    return env


def _on_finding(environment: Mapping[str, str], stop: FailOn | None) -> str:
    """Off unless a person set it: the report at the end has all findings."""
    return f"stop:{stop.value}" if stop else environment.get("GRADLEDGER_ON_FINDING", "off")


def _steps(store: Store) -> int:
    return max((run.steps for run in queries.list_runs(store, MOST_RUNS)), default=0)


def _acknowledge(store: Store, rule: str, note: str) -> bool:
    """Acknowledge the findings of a rule in all runs; whether there is one."""
    acknowledgement, exists = Acknowledgement(note, None, time.time()), False
    for run in queries.list_runs(store, MOST_RUNS):
        with suppress(NoSuchFinding):
            acknowledgements.acknowledge(store, run.id, rule, acknowledgement)
            exists = True
    return exists


def _checked_runs(store: Store) -> list[CheckedRun]:
    runs = sorted(queries.list_runs(store, MOST_RUNS), key=lambda run: run.started)
    return [checked_run(store, run) for run in runs if run.steps]


# ---------------------------------------------------------------- results


def _verdict(
    name: str, runs: list[CheckedRun], result: EvaluationResult, reason: str
) -> dict[str, object]:
    """The verdict as JSON; ``reason`` only if no step was recorded."""
    steps = sum(run.steps for run in runs)
    ranks = max((run.ranks for run in runs), default=0)
    objectives = [objective for run in runs for objective in run.objectives]
    topology = next((run.topology for run in runs if run.topology), None)
    revision = next((run.revision for run in runs if run.revision.commit), Revision())
    verdict = verdict_json(name, steps, ranks, result, objectives, topology, revision)
    return verdict if runs else verdict | {"reason": f"no step was recorded: {reason}"}


def _reason_without_steps(command: list[str], progress: Path) -> str:
    """Why no optimizer step was recorded, from how far the processes of the command came."""
    if imported := activity.reason(progress):
        return imported
    if (progress / "python").exists():
        return "Python ran; torch was not imported, or its import failed"
    reason = unreachable.reason(command) or (
        "the command started no Python, or only ones without PYTHONPATH (python -I, sudo, ssh, "
        f"docker). If it trains, run `gradledger check` in there, or {unreachable.WORKAROUND}"
    )
    return f"no process reported: {reason}"


def _print(runs: list[CheckedRun], ended: child_process.ExitResult | None, reason: str) -> None:
    """On stderr: stdout belongs to the command."""
    output = console(sys.stderr)
    for run in runs:
        output.print(run.report(), crop=False)  # no line of a diff is cut
    if ended is None:
        output.print("gradledger: the command did not start", style="bold red")
        return
    if not runs:
        message = f"gradledger: no optimizer step was recorded: {reason}"
        output.print(message, markup=False, soft_wrap=True)
    if _failed(ended):
        failure = "interrupted" if ended.interrupted else f"the command failed: {ended}"
        output.print(f"gradledger: {failure}", style="bold red")


def _failed(ended: child_process.ExitResult) -> bool:
    return ended.status != 0 and not ended.stopped


def _status(
    result: EvaluationResult, ended: child_process.ExitResult | None, gate: Gate, stop: bool
) -> int:
    failing = any(map(gate.fails, result.findings))
    if ended is None or _failed(ended):
        return FINDINGS if ended and stop and failing else COMMAND_FAILED
    if failing:
        return FINDINGS
    return INCOMPLETE if result.verdict == "incomplete" else 0


def _final_status(
    status: int,
    ended: child_process.ExitResult | None,
    has_runs: bool,
    allow_incomplete: bool,
    seconds: float,
) -> int:
    """Print the exit status with its meaning and how long it took; return it."""
    meaning = "interrupted" if ended and ended.interrupted else MEANINGS[status]
    hint = ""
    if status == INCOMPLETE and has_runs:
        meaning, hint = "incomplete", ALLOWED if allow_incomplete else NOT_ALLOWED
        status = 0 if allow_incomplete else INCOMPLETE
    took = f", {duration(seconds)}" if sys.stderr.isatty() else ""
    if hint or took:
        typer.echo(f"gradledger: exit status {status}: {meaning}{took}{hint}", err=True)
    return status
