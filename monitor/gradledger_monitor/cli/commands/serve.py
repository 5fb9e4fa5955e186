"""``gradledger serve``: run the service in this process."""

from __future__ import annotations

import errno
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
from gradledger_monitor.cli.options import DATABASE_ERRORS, DatabaseOption, database, settings
from gradledger_monitor.common.hosts import is_loopback
from gradledger_monitor.config.settings import Settings
from gradledger_monitor.store.admin import tokens
from gradledger_monitor.telemetry import logs
from gradledger_monitor.workers.gc_tuning import collect_seldom

log = logging.getLogger(__name__)

SECONDS_TO_FINISH = 10
MOST_DESCRIPTORS = 65_536


class _Server(uvicorn.Server):
    """Prints its URL once it listens."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            address, port, *_ = self.servers[0].sockets[0].getsockname()
            host = f"[{address}]" if ":" in address else address
            typer.echo(f"gradledger listens on http://{host}:{port}")


def serve(
    db: DatabaseOption = None,
    host: Annotated[str | None, typer.Option(help="The address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(help="The port; 0 chooses a free one.")] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Require no token, also on other addresses.")
    ] = False,
) -> None:
    """Run the service: receive records, evaluate runs, show them in the browser."""
    current = settings(db=db, host=host, port=port, access="open" if insecure else None)
    _require_free_port(current)
    logs.configure(current.log_level, current.log_format)
    try:
        if not insecure:
            _require_token_beyond_loopback(current)
        service = create_app(current)
    except DATABASE_ERRORS as error:
        raise typer.BadParameter(f"{error}", param_hint="--db") from error
    service.state.service.store.migrate()  # here, an error is one line on stderr
    _run(service, current)


def _require_free_port(current: Settings) -> None:
    """Refuse a port that another process listens on: uvicorn would write a line of its log."""
    if current.port == 0:
        return
    family = socket.AF_INET6 if ":" in current.host else socket.AF_INET
    try:
        socket.create_server((current.host, current.port), family=family).close()
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            reason = (
                f"{current.host}:{current.port} is in use, perhaps by another gradledger serve. "
                "Stop that one, or choose another port"
            )
            raise typer.BadParameter(reason, param_hint="--port") from error


def _require_token_beyond_loopback(current: Settings) -> None:
    """Refuse to listen on other addresses while there is no valid token."""
    if is_loopback(current.host) or (current.requires_token and _has_valid_token(current)):
        return
    raise typer.BadParameter(
        f"{current.host} is reachable from other machines, which could read and write runs without "
        "a token. Create a token first (gradledger token create NAME --scope admin), or pass "
        "--insecure to allow this",
        param_hint="--host",
    )


def _has_valid_token(current: Settings) -> bool:
    if current.admin_token is not None:
        return True
    url = make_url(current.db)
    if url.get_backend_name() == "sqlite" and not Path(str(url.database)).exists():
        return False  # opening it would create it
    with database(current.db) as store:
        return any(token.revoked is None for token in tokens.list_tokens(store))


def _raise_descriptors() -> int:
    """Raise the limit of open files, as each connection needs one; return the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MOST_DESCRIPTORS)
    if soft == resource.RLIM_INFINITY or soft >= most:
        return most
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    return most


def _server_config(service: FastAPI, current: Settings, descriptors: int) -> uvicorn.Config:
    most = current.max_connections or connections.max_connections(descriptors)
    limits = connections.Limits(
        connections=most,
        per_client=current.connections_per_client or max(1, most // 2),
        header=current.header_timeout,
        body=current.body_timeout,
        body_rate=current.body_min_rate,
        idle=current.idle_timeout,
        send=current.send_timeout,
    )
    connection_log = service.state.service.connection_log
    guard = connections.Guard(limits, connection_log, current.trusted_proxies)
    return uvicorn.Config(
        service,
        http=connections.protocol(guard),
        ws="none",
        backlog=connections.backlog(descriptors),
        timeout_keep_alive=math.ceil(current.idle_timeout),
        host=current.host,
        port=current.port,
        log_config=None,
        access_log=False,
        proxy_headers=bool(current.trusted_proxies),
        forwarded_allow_ips=current.trusted_proxies,
        timeout_graceful_shutdown=SECONDS_TO_FINISH,
        server_header=False,
    )


def _run(service: FastAPI, current: Settings) -> None:
    quiet_uvicorn()
    server = _Server(_server_config(service, current, _raise_descriptors()))
    for number in (signal.SIGINT, signal.SIGTERM):
        # uvicorn shuts down on these signals, then raises them again: ignore the second one.
        signal.signal(number, lambda *_: None)
    collect_seldom()
    server.run()
    if not server.started:
        raise typer.Exit(1)
