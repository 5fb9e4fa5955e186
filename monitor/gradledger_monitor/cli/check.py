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
from typing import Annotated

import typer
from pydantic import ValidationError

from gradledger import autostart
from gradledger.settings import NO_SPOOL
from gradledger_monitor import child
from gradledger_monitor.findings import SEVERITIES, Acknowledgement, Judgement
from gradledger_monitor.private_service import PrivateService, private_service
from gradledger_monitor.report_text import console, report
from gradledger_monitor.rules.choices import Choices
from gradledger_monitor.rules.manual import signatures
from gradledger_monitor.settings import RuleSettings
from gradledger_monitor.store import acknowledging, reading
from gradledger_monitor.store.acknowledging import NoSuchFinding
from gradledger_monitor.store.database import Store
from gradledger_monitor.together import anything_measured, together
from gradledger_monitor.verdict_json import verdict_json

FINDINGS, COMMAND_FAILED, NOTHING_MEASURED = 1, 3, 4
MOST_RUNS = 10_000  # that one command may start


class FailOn(str, Enum):
    """The least severity that makes the check fail."""

    info = "info"
    warning = "warning"
    error = "error"


@dataclass(frozen=True)
class Checked:
    """One training of the command, judged."""

    name: str
    steps: int
    ranks: int
    judgement: Judgement


def check(
    command: Annotated[list[str], typer.Argument(help="What to run, after --.")],
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write the verdict there.", dir_okay=False)
    ] = None,
    max_steps: Annotated[
        int | None, typer.Option(min=1, help="Stop the command after so many optimizer steps.")
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
) -> None:
    """Run a command and judge it here and now.

    Exits 0 when there is nothing to report, 1 with findings that were not acknowledged, 2 on bad
    usage, 3 when the command itself failed, 4 when nothing could be measured.
    """
    if json_file and not json_file.absolute().parent.is_dir():
        raise typer.BadParameter(f"there is no folder {json_file.parent}", param_hint="--json")
    known = _known(acknowledge or [])
    name = name or autostart.name_of(command)
    with private_service(_choices()) as service:
        ended = _run(command, name, service, max_steps, fail_on if stop else None)
        service.judge_all()
        unseen = [rule for rule, note in known if not _acknowledge(service.store, rule, note)]
        checked = _checked(service.store)
    answer = together([one.judgement for one in checked])
    if json_file:
        json_file.write_text(json.dumps(_as_json(name, checked, answer), indent=2) + "\n")
    _show(checked, ended)
    for rule in unseen:
        typer.echo(f"gradledger check: {rule} was acknowledged, and found nothing", err=True)
    raise typer.Exit(_status(answer, ended, fail_on, stop))


def _choices() -> Choices:
    """What the environment says about the rules; nothing else of it is meant for this service."""
    try:
        return RuleSettings().choices
    except ValidationError as error:
        raise typer.BadParameter(str(error)) from error


def _known(acknowledged: list[str]) -> list[tuple[str, str]]:
    """Rules and notes, as the command line gives them."""
    pairs = [
        (rule.strip(), note.strip()) for rule, _, note in (a.partition("=") for a in acknowledged)
    ]
    for rule, note in pairs:
        if rule not in signatures() or not note:
            why = f"{rule!r} is not RULE=NOTE with a rule that `gradledger rules` lists"
            raise typer.BadParameter(why, param_hint="--acknowledge")
    return pairs


def _acknowledge(store: Store, rule: str, note: str) -> bool:
    """Whether the rule found anything in any run of the command."""
    said, found = Acknowledgement(note, None, time.time()), False
    for run in reading.list_runs(store, MOST_RUNS):
        with suppress(NoSuchFinding):
            acknowledging.acknowledge(store, run.id, rule, said)
            found = True
    return found


def _run(
    command: list[str],
    name: str,
    service: PrivateService,
    max_steps: int | None,
    stop: FailOn | None,
) -> child.Ended | None:
    ours = ("GRADLEDGER_RUN", "GRADLEDGER_TOKEN")
    base = {key: value for key, value in os.environ.items() if key not in ours}
    env = autostart.environment(base, command, name=name, url=service.url)
    env["GRADLEDGER_SPOOL"] = NO_SPOOL  # nobody will ever speak with this service again
    # the verdict says it all at the end; what else a person chose holds
    env["GRADLEDGER_ON_FINDING"] = f"stop:{stop.value}" if stop else _chosen(base)

    def enough() -> bool:
        return max_steps is not None and _steps(service.store) >= max_steps

    try:
        return child.run(command, env, enough)
    except OSError as error:
        typer.echo(f"gradledger check: {command[0]}: {error.strerror}", err=True)
        return None


def _chosen(environment: Mapping[str, str]) -> str:
    return environment.get("GRADLEDGER_ON_FINDING", "off")


def _steps(store: Store) -> int:
    return max((run.steps for run in reading.list_runs(store, MOST_RUNS)), default=0)


def _checked(store: Store) -> list[Checked]:
    runs = sorted(reading.list_runs(store, MOST_RUNS), key=lambda run: run.started)
    return [
        Checked(run.name, run.steps, run.world_size, reading.judgement(store, run.id))
        for run in runs
        if run.steps
    ]


def _as_json(name: str, checked: list[Checked], answer: Judgement) -> dict[str, object]:
    steps = sum(one.steps for one in checked)
    ranks = max((one.ranks for one in checked), default=0)
    return verdict_json(name, steps, ranks, answer)


def _show(checked: list[Checked], ended: child.Ended | None) -> None:
    """On stderr: what the command says on stdout stays the command's."""
    out = console(sys.stderr)
    for one in checked:
        out.print(report(one.name, one.steps, one.ranks, one.judgement))
    if not checked:
        out.print("gradledger: no optimizer step was seen. Does the command train with PyTorch?")
    if ended is None or _failed(ended):
        out.print(
            f"gradledger: the command failed{f': {ended}' if ended else ''}", style="bold red"
        )


def _failed(ended: child.Ended) -> bool:
    return ended.status != 0 and not ended.stopped


def _status(answer: Judgement, ended: child.Ended | None, fail_on: FailOn, stop: bool) -> int:
    failing = _has_news(answer, fail_on)
    if ended is None or _failed(ended):
        return FINDINGS if ended and stop and failing else COMMAND_FAILED
    if not anything_measured(answer):
        return NOTHING_MEASURED
    return FINDINGS if failing else 0


def _has_news(answer: Judgement, fail_on: FailOn) -> bool:
    least = SEVERITIES.index(fail_on.value)
    news = (f for f in answer.findings if f.inhibited_by is None and f.acknowledged is None)
    return any(SEVERITIES.index(one.severity) >= least for one in news)
