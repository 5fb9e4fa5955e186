"""``gradledger serve``: the service in this process, until it is told to stop."""

from __future__ import annotations

import ipaddress
import signal
import socket
from typing import Annotated, Any

import typer
import uvicorn
from fastapi import FastAPI
from pydantic import ValidationError
from sqlalchemy.exc import ArgumentError

from gradledger_monitor.app import create_app
from gradledger_monitor.settings import Settings

SECONDS_TO_FINISH = 10


class _Server(uvicorn.Server):
    """Says where it listens once it does."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            found = self.servers[0].sockets[0].getsockname()
            host = f"[{found[0]}]" if ":" in found[0] else found[0]
            typer.echo(f"gradledger listens on http://{host}:{found[1]}")


def serve(
    db: Annotated[str | None, typer.Option(help="SQLAlchemy URL of the database.")] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(help="Port; 0 takes a free one.")] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Listen beyond this machine without access control.")
    ] = False,
) -> None:
    """Take records in, judge runs, show them in the browser."""
    given: dict[str, Any] = {"db": db, "host": host, "port": port}
    settings = _settings({name: value for name, value in given.items() if value is not None})
    if not insecure and not _is_loopback(settings.host):
        raise typer.BadParameter(
            f"{settings.host} can be reached from other machines, and anyone there could read and "
            "write runs; say --insecure if that is meant",
            param_hint="--host",
        )
    try:
        service = create_app(settings)
    except (ValueError, ArgumentError, ModuleNotFoundError) as error:
        raise typer.BadParameter(f"{error}", param_hint="--db") from error
    _run(service, settings)


def _settings(given: dict[str, Any]) -> Settings:
    try:
        return Settings(**given)
    except ValidationError as error:
        wrong = [f"GRADLEDGER_{e['loc'][0]}".upper() + f": {e['msg']}" for e in error.errors()]
        raise typer.BadParameter("; ".join(wrong)) from error


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _run(service: FastAPI, settings: Settings) -> None:
    config = uvicorn.Config(
        service,
        host=settings.host,
        port=settings.port,
        log_level="warning",
        timeout_graceful_shutdown=SECONDS_TO_FINISH,
        server_header=False,
    )
    for number in (signal.SIGINT, signal.SIGTERM):
        # uvicorn ends cleanly on these, then raises them once more: to end is what was asked
        signal.signal(number, lambda *_: None)
    server = _Server(config)
    server.run()
    if not server.started:
        raise typer.Exit(1)
