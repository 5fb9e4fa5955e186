"""``gradledger alerts``: test channels, list alerts and their attempts, send them again."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from enum import Enum
from typing import Annotated

import anyio
import typer
from rich.text import Text

from gradledger_monitor.alerts import markdown
from gradledger_monitor.alerts.assembly import Alerts
from gradledger_monitor.alerts.roster import skipped_findings
from gradledger_monitor.cli.options import DatabaseOption, database, settings
from gradledger_monitor.cli.tables import cell, show, table
from gradledger_monitor.common import clock
from gradledger_monitor.common.sanitize import printable
from gradledger_monitor.store.alerts import earlier_findings, outbox
from gradledger_monitor.store.alerts.channels import switch
from gradledger_monitor.store.alerts.outbox import Alert
from gradledger_monitor.store.database import Store
from gradledger_web.formatting import plural

app = typer.Typer(no_args_is_help=True, help="Test channels, list alerts, send them again.")

NOT_DELIVERED = 1
ADD_CHANNEL = "Set GRADLEDGER_ALERT_CHANNELS, or add one on the alerts page"
STATES = {"waiting": "yellow", "delivered": "green", "dead": "bold red"}  # and their styles


class AlertState(str, Enum):
    """The state of an alert; dead ones are not retried."""

    waiting = "waiting"
    delivered = "delivered"
    dead = "dead"


@contextmanager
def _open_alerts(db: str | None) -> Iterator[tuple[Store, Alerts]]:
    current = settings(db=db)
    with database(current.db) as store:
        yield store, Alerts(current, current.base_url, store)


def _require_channel(alerts: Alerts, channel: str) -> None:
    names = sorted(alerts.roster().channels)
    if not names:
        raise typer.BadParameter(f"there is no channel {channel!r}: there are none. {ADD_CHANNEL}")
    if channel not in names:
        raise typer.BadParameter(f"there is no channel {channel!r}. Channels: {', '.join(names)}")


@app.command()
def test(
    channel: Annotated[str, typer.Argument(help="The name, from `gradledger alerts channels`.")],
    db: DatabaseOption = None,
) -> None:
    """Send a test to a channel and print the result. Exits 1 if it was not delivered."""
    with _open_alerts(db) as (_, alerts):
        _require_channel(alerts, channel)
        alert, outcome = anyio.run(alerts.send_test, channel, clock.now())
    status = f" ({outcome.status})" if outcome.status else ""
    typer.echo(f"{alert} {outcome.outcome}{status} {printable(outcome.detail)}".rstrip())
    if outcome.outcome != "delivered":
        raise typer.Exit(NOT_DELIVERED)


@app.command()
def channels(db: DatabaseOption = None) -> None:
    """List all channels, without secrets."""
    with _open_alerts(db) as (store, alerts):
        roster = alerts.roster()
        skipped = skipped_findings(store, roster, clock.now())
    if not roster.channels:
        return typer.echo(f"no channel yet. {ADD_CHANNEL}")
    rows, hints = table("channel", "kind", "target", "state"), []
    for name, channel in sorted(roster.channels.items()):
        channel_state = roster.state(name)
        state = cell("enabled", "green")
        if channel_state.disabled:
            since = _local_time(channel_state.disabled)
            state = cell(f"disabled since {since}: {channel_state.why}", "red")
        elif (channel_state.held_until or 0) > time.time():
            state = cell(f"held until {_local_time(channel_state.held_until)}", "yellow")
        target = channel.model_dump(mode="json")["url"]
        rows.add_row(name, channel.kind, cell(target), state)
        if findings := skipped.get(name):
            number = plural(len(findings), "open finding")
            command = f"gradledger alerts send-open {name}"
            hints.append(cell(f"{name}: {number} from before it was added; send with `{command}`"))
    show(rows, *hints)


@app.command("send-open")
def send_open(
    channel: Annotated[str, typer.Argument(help="The channel.")],
    db: DatabaseOption = None,
) -> None:
    """Send the open findings from before a channel was added, of runs of the last 24 hours.

    The service sends them when it runs.
    """
    with _open_alerts(db) as (store, alerts):
        _require_channel(alerts, channel)
        roster, now = alerts.roster(), clock.now()
        if channel not in roster.enabled:
            reason = f"channel {channel!r} is disabled: gradledger alerts on {channel}"
            raise typer.BadParameter(reason)
        findings = skipped_findings(store, roster, now).get(channel, [])
        earlier_findings.unskip(store, channel, now)
    number, runs = plural(len(findings), "finding"), plural(len({f.run for f in findings}), "run")
    typer.echo(f"{number} of {runs} queued; the service sends them as soon as it runs")


@app.command("list")
def list_(
    state: Annotated[AlertState | None, typer.Option(help="Only alerts in this state.")] = None,
    channel: Annotated[str | None, typer.Option(help="Only alerts of this channel.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="The number of alerts, newest first.")] = 20,
    as_json: Annotated[
        bool, typer.Option("--json", help="One line of JSON for each alert.")
    ] = False,
    db: DatabaseOption = None,
) -> None:
    """List alerts with their delivery attempts."""
    with _open_alerts(db) as (store, _):
        alerts = outbox.list_alerts(store, state.value if state else None, channel, limit)
    if as_json:
        for alert in alerts:
            typer.echo(_as_json(alert))
    elif alerts:
        show(*(line for alert in alerts for line in _lines(alert)))
    else:
        typer.echo("no alert matches" if state or channel else "no alert yet")


@app.command()
def replay(
    alert: Annotated[str, typer.Argument(help="The id, from `gradledger alerts list`.")],
    db: DatabaseOption = None,
) -> None:
    """Send an alert again, with the same id. The service sends it when it runs."""
    with _open_alerts(db) as (store, _):
        if not outbox.replay(store, alert, clock.now()):
            raise typer.BadParameter(f"there is no alert {alert!r}, or it is being sent now")
    typer.echo(f"{alert} is queued; the service sends it as soon as it runs")


@app.command()
def on(
    channel: Annotated[str, typer.Argument(help="The channel.")],
    db: DatabaseOption = None,
) -> None:
    """Enable a channel that a person or a response of 410 Gone disabled."""
    with _open_alerts(db) as (store, alerts):
        _require_channel(alerts, channel)
        switch(store, channel, True, clock.now())


@app.command()
def off(
    channel: Annotated[str, typer.Argument(help="The channel.")],
    db: DatabaseOption = None,
) -> None:
    """Disable a channel. Its waiting alerts become dead and can be replayed."""
    with _open_alerts(db) as (store, alerts):
        _require_channel(alerts, channel)
        switch(store, channel, False, clock.now())


def _lines(alert: Alert) -> Iterator[Text]:
    """An alert, its title and its attempts: in columns, an id would leave no space for a title."""
    head = cell(f"{alert.id}  ").append(f"{alert.state:9}", STATES.get(alert.state, ""))
    yield head.append(f"  {_local_time(alert.created)}  {printable(alert.channel)}")
    yield cell(f"  {markdown.title(alert.document)}")
    for attempt in alert.attempts:
        yield cell(_attempt(attempt), "dim")


def _attempt(attempt: outbox.Attempt) -> str:
    status = f" {attempt.status}" if attempt.status else ""
    result = f"{attempt.outcome or 'in progress or interrupted'}{status}"
    detail = attempt.detail or ""
    return f"  attempt {attempt.attempt} at {_local_time(attempt.at)}: {result} {detail}".rstrip()


def _as_json(alert: Alert) -> str:
    attempts = [vars(attempt) for attempt in alert.attempts]
    return json.dumps({**vars(alert), "attempts": attempts})


def _local_time(seconds: float | None) -> str:
    return f"{datetime.fromtimestamp(seconds or 0):%Y-%m-%d %H:%M:%S}"
