"""Untrusted text of a training process is text on every page: nothing of it runs.

The fixture ``page`` fails a test on any dialog, script error, request to another host, or
violation of the Content-Security-Policy.
"""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import Page, expect

from gradledger.records import EvalRecord, Record, StepRecord
from helpers.batches import batch, eventually, step
from helpers.service import Service

PAYLOADS = (
    "<script>alert(1)</script>",
    "\"><img src=x onerror=alert(2)>'",
    "</title></style><svg onload=alert(3)>",
    "<a href='javascript:alert(4)'>a</a>",
    "{{ 7 * 191 }}${7 * 191}{% raw %}",
    "line\nfeed\x1b[31m\u202egnp.exe",
)


def hostile_step(number: int, payload: str) -> StepRecord:
    """A step with the payload in every field of text."""
    record = step(number)
    record.missing = {payload: payload}
    for micro_batch in record.micro_batches:
        micro_batch.missing = {payload: payload}
        for term in micro_batch.terms:
            term.kind = payload
            term.missing = {payload: payload}
    return record


def send(service: Service, payload: str) -> None:
    """A run with the payload in every field of text."""
    header: dict[str, Any] = {
        "name": payload,
        "project": payload,
        "optimizers": [payload],
        "config": {payload: payload, "nested": [{payload: payload}]},
        "environment": {payload: payload},
    }
    records: list[Record] = [hostile_step(n, payload) for n in (1, 2, 3)]
    records += [EvalRecord(n, 1_000.0 + n, {payload: 1.0 * n, "loss": 1.0}) for n in (1, 2)]
    assert service.post(batch("hostile", records, **header)).status_code == 200
    assert eventually(60, lambda: bool(service.get("/runs/hostile").json()["steps"] == 3))


@pytest.mark.parametrize("payload", PAYLOADS)
def test_no_text_of_a_run_runs(page: Page, service: Service, payload: str) -> None:
    send(service, payload)
    for finding in service.get("/runs/hostile/findings").json()["findings"]:
        path = f"/api/v1/runs/hostile/findings/{finding['rule']}/acknowledgement"
        acknowledgement = {"note": payload, "by": payload}
        assert page.request.put(service.url + path, data=acknowledgement).ok
    shown = payload.replace("\x1b", "\N{REPLACEMENT CHARACTER}")  # no control character on a page
    visible = shown.replace("\n", " ")
    page.goto("/")
    expect(page.locator("[data-run=hostile] a")).to_have_text(visible)
    page.goto("/runs/hostile")
    expect(page.locator("#charts[data-ready]")).to_be_visible()
    assert page.locator("h1").inner_text().split() == shown.split()
    page.locator(".plot").first.hover()
    page.goto("/runs/hostile/steps/0/1")
    expect(page.locator(".crumbs")).to_contain_text(visible)
    assert page.locator("img[src=x]").count() == 0
    page.locator(".plot").first.hover()
    page.wait_for_timeout(200)
    assert "1337" not in page.locator("main").inner_text()


SEARCH = "text => { location.search = new URLSearchParams({search: text, next: text}) }"


@pytest.mark.parametrize("payload", PAYLOADS)
def test_nothing_in_an_address_runs(page: Page, service: Service, payload: str) -> None:
    send(service, "quiet")
    for path in ("/", "/login"):
        page.goto(path)
        with page.expect_navigation():
            page.evaluate(SEARCH, payload)
        page.wait_for_timeout(100)
        assert page.locator("script:not([src])").count() == 0
    answer = page.request.get(f"{service.url}/runs/{_quoted(payload)}")
    assert answer.status == 404 and answer.headers["x-content-type-options"] == "nosniff"
    if answer.headers["content-type"].startswith("text/html"):
        text = answer.text()
        assert "1337" not in text and ("<" not in payload or payload not in text)


def _quoted(text: str) -> str:
    return "".join(f"%{byte:02x}" for byte in text.encode())
