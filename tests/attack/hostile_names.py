"""Runs with hostile text in every field: on each page, in each export, on the command line.

Nothing of a name may become an element, an attribute or a script, and no control character may
reach a terminal. The browser tests show the same in a real browser for a few of them.
"""

from __future__ import annotations

import itertools
import os
import re
import time
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import quote

from attack.arena import Arena
from attack.outcome import Outcome
from gradledger.records import EvalRecord, Record
from helpers import http
from helpers.batches import batch, eventually, step
from helpers.command import gradledger
from helpers.service import Service

NAMES = (
    "<script>alert(1)</script>",
    "\"><img src=x onerror=alert(2)>'",
    "</title></style><svg onload=alert(3)>",
    "<a href='javascript:alert(4)'>a</a>",
    "{{ 7 * 191 }}${7 * 191}{% raw %}",
    "\x00\x01\x07\x08\x1b]0;owned\x07\x1b[31m\x9b31m\x7f",
    "line\r\nSet-Cookie: a=b\u2028\u2029next",
    "\u202egnp.exe\u2066\u200f\ufeff",
    "=HYPERLINK(1)+cmd|' /C calc'!A0",
    "'; DROP TABLE runs; --",
    "../../../etc/passwd%00%2e%2e/",
    "\U0001f9e8" * 128,
    "\u0915\u094d\u0937" * 85,
    "W" * 256,
    "| a | b |\n|---|---|\n```\n# h",
)
PAGES = (
    "/",
    "/runs/{run}",
    "/runs/{run}/steps/0/1",
    "/compare?run={run}&run={other}",
    "/settings",
    "/runs/{run}/postmortem?format=html",
    "/?search={name}",
    "/runs/{name}",
    "/rules/{name}",
    "/login?next={name}",
)
TEXTS = (
    "/runs/{run}/postmortem?format=md",
    "/runs/{run}/postmortem?format=json",
    "/metrics",
    "/api/v1/runs",
    "/api/v1/runs/{run}",
    "/api/v1/runs/{run}/verdict",
    "/api/v1/runs/{run}/evaluations",
    "/api/v1/runs/{run}/steps/0/1",
    "/api/v1/runs?search={name}",
    "/api/v1/runs/{name}",
    "/api/v1/{name}",
    "/{name}",
)
COMMANDS = (
    ("postmortem", "{run}", "-o", "{folder}/{run}.md", "--format", "md"),
    ("export", "{run}", "-o", "{folder}/{run}.zst"),
    ("replay", "{run}"),
    ("compare", "{run}", "{other}"),
)
CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
ESCAPE = re.compile(r"\x1b(?!\[[0-9;]*m)")  # escape sequences other than colours


class _Page(HTMLParser):
    """Finds markup into which a hostile name could have turned."""

    def __init__(self) -> None:
        super().__init__()
        self.harm: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = dict(attrs)
        if tag == "script" and "src" not in named and "json" not in (named.get("type") or ""):
            self.harm.append("a script without a source")
        if tag == "img" and named.get("src") == "x":
            self.harm.append("an image of a name")
        for name, value in attrs:
            if name.startswith("on"):
                self.harm.append(f"the attribute {name}")
            if name in ("href", "src", "action") and re.match(r"\s*javascript:", value or ""):
                self.harm.append(f"a script in {name}")


def attack(arena: Arena) -> Iterator[Outcome]:
    """Check every name on every page and in every text, and some names in commands."""
    outcome = Outcome("hostile names")
    url = arena.database()
    with arena.service(outcome, url) as service:
        runs = [_send(service, outcome, n, name) for n, name in enumerate(NAMES)]
        for number, (run, name) in enumerate(zip(runs, NAMES, strict=True)):
            words = {"run": run, "other": runs[number - 1], "name": quote(name, safe="")}
            for path in (*PAGES, *TEXTS):
                _check_page(service, outcome, path.format(**words))
        few = runs if arena.seconds >= 30 else runs[5:8]
        for run, command in itertools.product(few, COMMANDS):
            _run(outcome, url, command, run, runs[0] if run != runs[0] else runs[1], arena.folder)
    yield outcome


def _send(service: Service, outcome: Outcome, number: int, name: str) -> str:
    run = f"hostile-{number}"
    records: list[Record] = []
    for n in (1, 2, 3):
        record = step(n)
        record.missing = {name: name}
        for micro_batch in record.micro_batches:
            for term in micro_batch.terms:
                term.kind = name
        records.append(record)
    records += [EvalRecord(n, 1_000.0 + n, {name: 1.0 * n, "loss": 1.0}) for n in (1, 2)]
    payload: dict[str, Any] = {"name": name, "project": name, "optimizers": [name]}
    payload |= {"config": {name: name, "tags": [name]}, "environment": {name: name}}
    answer = service.post(batch(run, records, **payload))
    outcome.answered(answer.status_code, answer.elapsed.total_seconds())
    if not eventually(60, lambda: bool(service.get(f"/runs/{run}").json().get("steps") == 3)):
        outcome.fault(f"{name[:40]!r} was not evaluated")
    for finding in service.get(f"/runs/{run}/findings").json()["findings"]:
        path = f"/api/v1/runs/{run}/findings/{finding['rule']}/acknowledgement"
        payload = {"note": name, "by": name}
        answer = http.put(service.url + path, json=payload)
        outcome.answered(answer.status_code, answer.elapsed.total_seconds())
    return run


def _check_page(service: Service, outcome: Outcome, path: str) -> None:
    began = time.monotonic()
    answer = http.get(service.url + path)
    outcome.answered(answer.status_code, time.monotonic() - began)
    if "set-cookie" in answer.headers and "login" not in path:
        outcome.fault(f"{path[:60]} sets a cookie")
    kind = answer.headers.get("content-type", "")
    if kind.startswith("text/html"):
        page = _Page()
        page.feed(answer.text)
        for harm in page.harm:
            outcome.fault(f"{path[:60]} has {harm}")
    # JSON may contain characters that need no escape; no terminal reads it
    match = None if "json" in kind else CONTROL.search(answer.text)
    if match:
        outcome.fault(f"{path[:60]} has the control character {match[0]!r}")


def _run(
    outcome: Outcome, url: str, command: tuple[str, ...], run: str, other: str, folder: Path
) -> None:
    words = [word.format(run=run, other=other, folder=folder) for word in command]
    done = gradledger(*words, environment={**os.environ, "GRADLEDGER_DB": url})
    outcome.tried()
    if "Traceback" in done.stderr or done.returncode not in (0, 1):
        outcome.fault(f"{' '.join(words[:2])} ended with {done.returncode}: {done.stderr[-300:]}")
    printed = done.stdout + done.stderr
    if CONTROL.search(ESCAPE.sub("\x07", printed).replace("\x1b", "")):
        outcome.fault(f"{' '.join(words[:2])} prints a control character")
