"""``gradledger alerts``: try channels out, see what was sent and what was not, send it again."""

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

from gradledger_monitor.alerts import markdown
from gradledger_monitor.alerts.assembly import Alerts
from gradledger_monitor.cli.options import GivenDatabase, database, settings
from gradledger_monitor.common import clock
from gradledger_monitor.common.sanitize import printable
from gradledger_monitor.store.alerts import outbox
from gradledger_monitor.store.alerts.channels import switch
from gradledger_monitor.store.alerts.outbox import Alert
from gradledger_monitor.store.database import Store

app = typer.Typer(no_args_is_help=True, help="Try alerts out, see what was sent, send it again.")

NOT_DELIVERED = 1


class State(str, Enum):
    """What became of a message; dead ones are tried no more."""

    waiting = "waiting"
    delivered = "delivered"
    dead = "dead"


@contextmanager
def _parts(db: str | None) -> Iterator[tuple[Store, Alerts]]:
    read = settings(db=db)
    with database(read.db) as store:
        yield store, Alerts(read, read.base_url, store)


def _existing(alerts: Alerts, channel: str) -> None:
    known = sorted(alerts.roster().channels)
    if channel not in known:
        has = ", ".join(known) or "none: GRADLEDGER_ALERT_CHANNELS, or PUT /api/v1/alerts/channels/"
        raise typer.BadParameter(f"there is no channel {channel!r}; there is {has}")


@app.command()
def test(
    channel: Annotated[str, typer.Argument(help="Its name, as `gradledger alerts channels` says.")],
    db: GivenDatabase = None,
) -> None:
    """Send a test to a channel now, and say what became of it. Exits 1 if it did not arrive."""
    with _parts(db) as (_, alerts):
        _existing(alerts, channel)
        alert, outcome = anyio.run(alerts.send_test, channel, clock.now())
    status = f" ({outcome.status})" if outcome.status else ""
    typer.echo(f"{alert} {outcome.outcome}{status} {printable(outcome.detail)}".rstrip())
    if outcome.outcome != "delivered":
        raise typer.Exit(NOT_DELIVERED)


@app.command()
def channels(db: GivenDatabase = None) -> None:
    """Show all channels, without their secrets."""
    with _parts(db) as (_, alerts):
        roster = alerts.roster()
    for name, channel in sorted(roster.channels.items()):
        how = roster.state(name)
        state = f"off since {_moment(how.disabled)}: {how.why}" if how.disabled else "on"
        if not how.disabled and (how.held_until or 0) > time.time():
            state = f"held until {_moment(how.held_until)}"
        target = channel.model_dump(mode="json")["url"]
        typer.echo(f"{name:16}  {channel.kind:12}  {printable(target)}  {printable(state)}")


@app.command("list")
def list_(
    state: Annotated[State | None, typer.Option(help="Only those.")] = None,
    channel: Annotated[str | None, typer.Option(help="Only of this channel.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="At most so many, the newest.")] = 20,
    as_json: Annotated[bool, typer.Option("--json", help="All of each, a line of JSON.")] = False,
    db: GivenDatabase = None,
) -> None:
    """Show what was sent, what waits, and what was given up, with every attempt."""
    with _parts(db) as (store, _):
        found = outbox.list_alerts(store, state.value if state else None, channel, limit)
    for one in found:
        typer.echo(_as_json(one) if as_json else _lines(one))


@app.command()
def replay(
    alert: Annotated[str, typer.Argument(help="Its id, as `gradledger alerts list` shows it.")],
    db: GivenDatabase = None,
) -> None:
    """Have the service send a message again, under the same id."""
    with _parts(db) as (store, _):
        if not outbox.replay(store, alert, clock.now()):
            raise typer.BadParameter(f"there is no alert {alert!r} that is not being sent just now")
    typer.echo(f"{alert} is sent again by the service, as soon as it runs")


@app.command()
def on(channel: Annotated[str, typer.Argument(help="Its name.")], db: GivenDatabase = None) -> None:
    """Send to a channel again that is off: it answered 410 Gone, or somebody switched it off."""
    with _parts(db) as (store, alerts):
        _existing(alerts, channel)
        switch(store, channel, True, clock.now())


@app.command()
def off(
    channel: Annotated[str, typer.Argument(help="Its name.")], db: GivenDatabase = None
) -> None:
    """Send nothing more to a channel; what waits for it is given up, and can be replayed."""
    with _parts(db) as (store, alerts):
        _existing(alerts, channel)
        switch(store, channel, False, clock.now())


def _lines(one: Alert) -> str:
    head = f"{one.id}  {one.state:9}  {_moment(one.created)}  {one.channel}"
    title = markdown.title(one.document)
    return "\n".join([head, f"  {title}", *(_attempt(each) for each in one.attempts)])


def _attempt(each: outbox.Attempt) -> str:
    status = f" {each.status}" if each.status else ""
    outcome = each.outcome or "cut off, or going on"
    said = f"{outcome}{status} {printable(each.detail or '')}"
    return f"  attempt {each.attempt} at {_moment(each.at)}: {said}".rstrip()


def _as_json(one: Alert) -> str:
    attempts = [vars(each) for each in one.attempts]
    return json.dumps({**vars(one), "attempts": attempts})


def _moment(seconds: float | None) -> str:
    return f"{datetime.fromtimestamp(seconds or 0):%Y-%m-%d %H:%M:%S}"
