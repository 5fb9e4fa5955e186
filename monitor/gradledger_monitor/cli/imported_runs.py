"""The end of ``gradledger import``: the verdict of each imported run, and where its page is."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import quote

from gradledger.delivery.http_client import NO_FINDINGS_ID, Client
from gradledger.delivery.run_report import RunState, end_lines, final_state
from gradledger.on_finding import reported_finding
from gradledger_monitor.api.routes.ingest_reply import reply
from gradledger_monitor.common.sanitize import printable
from gradledger_monitor.store.database import Store
from gradledger_monitor.store.runs import queries
from gradledger_web.formatting import plural

MOST_RUNS = 10
WAIT_SECONDS = 15.0  # for the evaluation of a run by a service

# The lines for imported runs, from their run records by id: a restored archive has none.
Outcomes = Callable[[Mapping[str, bytes]], Iterator[str]]


def of_service(client: Client, url: str) -> Outcomes:
    """The verdicts of a service, which evaluates the runs while this waits."""

    def outcomes(runs: Mapping[str, bytes]) -> Iterator[str]:
        for run, header in _first(runs):
            findings: list[dict[str, Any]] = []

            def request(header: bytes = header, findings: Any = findings) -> RunState | None:
                result = client.post([header], NO_FINDINGS_ID)
                findings[:] = result.findings
                return result.run

            state = request()
            if state is not None:  # else it was refused, or this service has no verdict to send
                state = final_state(state, request, WAIT_SECONDS)
                page = f"{url.rstrip('/')}/runs/{quote(run, safe='')}"
                yield from _lines(json.loads(header)["name"], state, findings, page)
        yield from _others(runs)

    return outcomes


def of_database(store: Store) -> Outcomes:
    """The verdicts in a database, in which all runs are evaluated. No service is known."""

    def outcomes(runs: Mapping[str, bytes]) -> Iterator[str]:
        for run, _ in _first(runs):
            row, result = queries.get_run(store, run), reply(store, run, "")
            if row is not None:
                yield from _lines(row.name, RunState(**result["run"]), result["findings"], "")
        yield from _others(runs)

    return outcomes


def _lines(
    name: str, state: RunState | None, findings: list[dict[str, Any]], page: str
) -> Iterator[str]:
    first, *others = end_lines(state, [reported_finding(each, page) for each in findings], page)
    yield f"{printable(name)}: {first}"
    yield from filter(None, others)


def _first(runs: Mapping[str, bytes]) -> list[tuple[str, bytes]]:
    return list(runs.items())[:MOST_RUNS]


def _others(runs: Mapping[str, bytes]) -> Iterator[str]:
    if len(runs) > MOST_RUNS:
        yield f"and {plural(len(runs) - MOST_RUNS, 'other run')}"
