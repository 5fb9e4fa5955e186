"""``gradledger token``: create, list and revoke API tokens in the database."""

from __future__ import annotations

import time
from datetime import datetime
from enum import Enum
from typing import Annotated

import typer

from gradledger_monitor.cli.options import DatabaseOption, database, settings
from gradledger_monitor.cli.tables import cell, show, table
from gradledger_monitor.store.admin import tokens

app = typer.Typer(no_args_is_help=True, help="Create, list and revoke API tokens.")


class Scope(str, Enum):
    """What a token permits."""

    ingest = "ingest"
    read = "read"
    admin = "admin"


@app.command()
def create(
    name: Annotated[str, typer.Argument(help="The owner or the purpose of the token.")],
    scope: Annotated[
        list[Scope],
        typer.Option(help="Send records, read, or everything; repeatable."),
    ],
    db: DatabaseOption = None,
) -> None:
    """Create a token and print it. It is not shown again."""
    if not 0 < len(name.strip()) <= 256 or not name.isprintable():
        raise typer.BadParameter(
            f"{name!r} is not 1 to 256 printable characters", param_hint="NAME"
        )
    with database(settings(db=db).db) as store:
        token, secret = tokens.create(store, name.strip(), [s.value for s in scope], time.time())
    description = f"token {token.id} for {token.name} ({', '.join(token.scopes)})"
    typer.echo(f"{description}; copy it now, only its hash is stored:", err=True)
    typer.echo(secret)


@app.command("list")
def list_(db: DatabaseOption = None) -> None:
    """List all tokens, without their secrets."""
    with database(settings(db=db).db) as store:
        listed = tokens.list_tokens(store)
    if not listed:
        return typer.echo("no token yet; `gradledger token create NAME --scope read` makes one")
    rows = table("token", "name", "scopes", "created", "state")
    for token in listed:
        state = cell("valid", "green")
        if token.revoked is not None:
            state = cell(f"revoked {_local_time(token.revoked)}", "dim")
        scopes, created = ",".join(token.scopes), _local_time(token.created)
        rows.add_row(token.id, cell(token.name), scopes, created, state)
    show(rows)


@app.command()
def revoke(
    token: Annotated[str, typer.Argument(help="The id, from `gradledger token list`.")],
    db: DatabaseOption = None,
) -> None:
    """Revoke a token permanently. Browsers that use it are logged out."""
    with database(settings(db=db).db) as store:
        if not tokens.revoke(store, token, time.time()):
            raise typer.BadParameter(f"there is no valid token {token!r}", param_hint="TOKEN")
    typer.echo(f"token {token} is revoked")


def _local_time(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds):%Y-%m-%d %H:%M}"
