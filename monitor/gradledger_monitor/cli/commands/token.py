"""``gradledger token``: who may speak with the service, in its database."""

from __future__ import annotations

import time
from datetime import datetime
from enum import Enum
from typing import Annotated

import typer

from gradledger_monitor.cli.options import GivenDatabase, database, settings
from gradledger_monitor.store.admin import tokens

app = typer.Typer(no_args_is_help=True, help="Create, list and revoke API tokens.")


class Scope(str, Enum):
    """What a token may be used for."""

    ingest = "ingest"
    read = "read"
    admin = "admin"


@app.command()
def create(
    name: Annotated[str, typer.Argument(help="Whose it is, or what it is for.")],
    scope: Annotated[
        list[Scope],
        typer.Option(help="What it may do: send records, read, or everything. Give several."),
    ],
    db: GivenDatabase = None,
) -> None:
    """Make a token and write it to stdout: it is shown this once."""
    if not 0 < len(name.strip()) <= 256 or not name.isprintable():
        raise typer.BadParameter("1 to 256 printable characters", param_hint="NAME")
    with database(settings(db=db).db) as store:
        token, secret = tokens.create(store, name.strip(), [s.value for s in scope], time.time())
    kept = f"token {token.id} for {token.name} ({', '.join(token.scopes)})"
    typer.echo(f"{kept}; shown this once, only its hash is kept:", err=True)
    typer.echo(secret)


@app.command("list")
def list_(db: GivenDatabase = None) -> None:
    """Show all tokens, without their secrets."""
    with database(settings(db=db).db) as store:
        found = tokens.list_tokens(store)
    for token in found:
        state = f"revoked {_day(token.revoked)}" if token.revoked is not None else "valid"
        scopes = ",".join(token.scopes)
        typer.echo(f"{token.id}  {scopes:17}  made {_day(token.created)}  {state:24}  {token.name}")


@app.command()
def revoke(
    token: Annotated[str, typer.Argument(help="Its id, as `gradledger token list` shows it.")],
    db: GivenDatabase = None,
) -> None:
    """Make a token worthless, at once and for ever; browsers that used it are logged out."""
    with database(settings(db=db).db) as store:
        if not tokens.revoke(store, token, time.time()):
            raise typer.BadParameter(f"there is no valid token {token!r}", param_hint="TOKEN")
    typer.echo(f"token {token} is revoked")


def _day(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds):%Y-%m-%d %H:%M}"
