"""``gradledger serve``: the service in this process, until it is told to stop."""

from __future__ import annotations

import logging
import math
import resource
import signal
import socket
from pathlib import Path
from typing import Annotated

import typer
import uvicorn
from fastapi import FastAPI
from sqlalchemy import make_url

from gradledger_monitor.api.middleware import connections
from gradledger_monitor.api.middleware.connection_log import quiet_uvicorn
from gradledger_monitor.app import create_app
from gradledger_monitor.cli.options import NO_DATABASE, GivenDatabase, database, settings
from gradledger_monitor.common.hosts import is_loopback
from gradledger_monitor.config.settings import Settings
from gradledger_monitor.store.admin import tokens
from gradledger_monitor.telemetry import logs
from gradledger_monitor.workers.gc_tuning import collect_seldom

log = logging.getLogger(__name__)

SECONDS_TO_FINISH = 10
MOST_DESCRIPTORS = 65_536


class _Server(uvicorn.Server):
    """Says where it listens once it does."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            found = self.servers[0].sockets[0].getsockname()
            host = f"[{found[0]}]" if ":" in found[0] else found[0]
            typer.echo(f"gradledger listens on http://{host}:{found[1]}")


def serve(
    db: GivenDatabase = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(help="Port; 0 takes a free one.")] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Let everybody in who reaches it, without a token.")
    ] = False,
) -> None:
    """Take records in, judge runs, show them in the browser."""
    read = settings(db=db, host=host, port=port, access="open" if insecure else None)
    logs.configure(read.log_level, read.log_format)
    try:
        if not insecure:
            _check_reach(read)
        service = create_app(read)
    except NO_DATABASE as error:
        raise typer.BadParameter(f"{error}", param_hint="--db") from error
    service.state.service.store.migrate()  # what is wrong with it is said in a line, not in a log
    _run(service, read)


def _check_reach(read: Settings) -> None:
    """Refuse to be reached from other machines as long as nobody could show a token."""
    if is_loopback(read.host) or (read.requires_token and _somebody_has_a_token(read)):
        return
    raise typer.BadParameter(
        f"{read.host} can be reached from other machines, and anyone there could read and write "
        "runs: make a token first (gradledger token create NAME --scope admin), or say --insecure "
        "if that is meant",
        param_hint="--host",
    )


def _somebody_has_a_token(read: Settings) -> bool:
    if read.admin_token is not None:
        return True
    url = make_url(read.db)
    if url.get_backend_name() == "sqlite" and not Path(str(url.database)).exists():
        return False  # and to look would make it
    with database(read.db) as store:
        return any(token.revoked is None for token in tokens.list_tokens(store))


def _raise_descriptors() -> int:
    """Let this process open as many files as it may: each connection is one. How many that is."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MOST_DESCRIPTORS)
    if soft == resource.RLIM_INFINITY or soft >= most:
        return most
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    return most


def _run(service: FastAPI, read: Settings) -> None:
    descriptors = _raise_descriptors()
    most = read.max_connections or connections.max_connections(descriptors)
    limits = connections.Limits(
        connections=most,
        per_client=read.connections_per_client or max(1, most // 2),
        header=read.header_timeout,
        body=read.body_timeout,
        body_rate=read.body_min_rate,
        idle=read.idle_timeout,
        send=read.send_timeout,
    )
    connection_log = service.state.service.connection_log
    guard = connections.Guard(limits, connection_log, read.trusted_proxies)
    quiet_uvicorn()
    config = uvicorn.Config(
        service,
        http=connections.protocol(guard),
        ws="none",
        backlog=connections.backlog(descriptors),
        timeout_keep_alive=math.ceil(read.idle_timeout),
        host=read.host,
        port=read.port,
        log_config=None,
        access_log=False,
        proxy_headers=bool(read.trusted_proxies),
        forwarded_allow_ips=read.trusted_proxies,
        timeout_graceful_shutdown=SECONDS_TO_FINISH,
        server_header=False,
    )
    for number in (signal.SIGINT, signal.SIGTERM):
        # uvicorn ends cleanly on these, then raises them once more: to end is what was asked
        signal.signal(number, lambda *_: None)
    server = _Server(config)
    collect_seldom()
    server.run()
    if not server.started:
        raise typer.Exit(1)
