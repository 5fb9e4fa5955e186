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
from helpers.patience import HANGS
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


def send(service: Service, run: str, payload: str) -> None:
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
    assert service.post(batch(run, records, **header)).status_code == 200
    assert eventually(HANGS, lambda: bool(service.get(f"/runs/{run}").json()["steps"] == 3))


def hover(page: Page, plot: str) -> None:
    """Point at the middle of a plot, once it is drawn, and wait for the text at the pointer.

    It is hidden where the legend shows the values.
    """
    page.locator(plot).scroll_into_view_if_needed()
    page.locator(f"{plot} .nsewdrag").hover()
    expect(page.locator(f"{plot} .hoverlayer text").first).to_be_attached()


@pytest.mark.parametrize("number", range(len(PAYLOADS)))
def test_no_text_of_a_run_runs(page: Page, service: Service, number: int) -> None:
    run, payload = f"hostile-{number}", PAYLOADS[number]
    send(service, run, payload)
    for finding in service.get(f"/runs/{run}/findings").json()["findings"]:
        path = f"/api/v1/runs/{run}/findings/{finding['rule']}/acknowledgement"
        acknowledgement = {"note": payload, "by": payload}
        assert page.request.put(service.url + path, data=acknowledgement).ok
    shown = payload.replace("\x1b", "\N{REPLACEMENT CHARACTER}")  # no control character on a page
    visible = shown.replace("\n", " ")
    page.goto("/")
    expect(page.locator(f"[data-run={run}] a")).to_have_text(visible)
    page.goto(f"/runs/{run}")
    expect(page.locator("#charts[data-ready]")).to_be_visible()
    assert page.locator("h1").inner_text().split() == shown.split()
    hover(page, "#chart-norm .plot")
    assert page.locator("img[src=x]").count() == 0
    page.goto(f"/runs/{run}/steps/0/1")
    expect(page.locator(".crumbs")).to_contain_text(visible)
    hover(page, ".plot")
    assert page.locator("img[src=x]").count() == 0
    assert "1337" not in page.locator("main").inner_text()


SEARCH = "text => { location.search = new URLSearchParams({search: text, next: text}) }"


def test_nothing_in_an_address_runs(page: Page, service: Service) -> None:
    send(service, "quiet", "quiet")
    for path in ("/", "/login"):
        page.goto(path)
        for payload in PAYLOADS:
            with page.expect_navigation():
                page.evaluate(SEARCH, payload)
            assert page.locator("script:not([src])").count() == 0


@pytest.mark.parametrize("payload", PAYLOADS)
def test_an_address_is_not_repeated_as_markup(service: Service, payload: str) -> None:
    answer = service.get(f"/../../runs/{_quoted(payload)}")
    assert answer.status_code == 404 and answer.headers["x-content-type-options"] == "nosniff"
    if answer.headers["content-type"].startswith("text/html"):
        assert "1337" not in answer.text
        assert "<" not in payload or payload not in answer.text


def _quoted(text: str) -> str:
    return "".join(f"%{byte:02x}" for byte in text.encode())
