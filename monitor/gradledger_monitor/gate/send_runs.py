"""Sends the runs of a check to a service, which has pages for them."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import quote, urlsplit

from gradledger.delivery.http_client import Client
from gradledger_monitor.archive import reader, writer
from gradledger_monitor.archive.format import SUFFIX
from gradledger_monitor.store.database import Store
from gradledger_monitor.store.runs import queries

LOOPBACK = ("127.0.0.1", "localhost", "::1")
PROBE_SECONDS = 0.5
MOST_RUNS = 10_000  # that one command may start


def send_runs(store: Store, client: Client, url: str) -> Iterator[str]:
    """Send all runs of a store; one line for each: its page, or why it could not be sent."""
    runs = sorted(queries.list_runs(store, MOST_RUNS), key=lambda run: run.started)
    for run in runs:
        if run.steps:
            problem = _send(store, client, run.id)
            page = f"{url.rstrip('/')}/runs/{quote(run.id, safe='')}"
            yield f"not sent to {url}: {problem}" if problem else f"sent to {page}"


def _send(store: Store, client: Client, run: str) -> str:
    """Why the service did not store all records of a run; empty if it did."""
    with TemporaryDirectory(prefix="gradledger-") as folder:
        archive = Path(folder) / f"run{SUFFIX}"
        writer.export(store, run, archive)
        for lines in reader.record_batches(archive):
            result = client.post(lines)
            if result.outcome != "accepted" or result.refused:
                return result.problem
    return ""


def runs_here(url: str) -> bool:
    """Whether a service of this machine answers at a URL. Other machines are not tried."""
    parts = urlsplit(url)
    if parts.scheme != "http" or parts.hostname not in LOOPBACK:
        return False
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=PROBE_SECONDS)
    try:
        connection.request("GET", f"{parts.path.rstrip('/')}/healthz")
        document = json.loads(connection.getresponse().read(1000))
    except (OSError, http.client.HTTPException, ValueError):
        return False
    finally:
        connection.close()
    return bool(document == {"status": "alive"})
