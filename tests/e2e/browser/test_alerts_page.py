"""The alerts page: channels, messages, silences and routes, with and without JavaScript."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from helpers import http
from helpers.axe import OF_COLOURS, violations
from helpers.batches import batch, eventually, step
from helpers.patience import HANGS
from helpers.service import Service, running_service

RULE = "reduction.token_weights_unequal"
RUNS = [f"r{number}" for number in range(60)]  # more than one page of messages


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service whose messages wait: nothing may be sent to its one channel."""
    channels = [{"name": "wall", "url": "http://127.0.0.1:9/hook"}]
    settings: dict[str, Any] = {"alert_channels": json.dumps(channels), "alert_retries": "[0]"}
    folder = tmp_path_factory.mktemp("alerts")
    with running_service(folder / "gradledger.db", **settings) as running:
        for run in RUNS:
            running.post(batch(run, [step(1)], name=f"run {run}", project="a project"))
        assert eventually(HANGS, lambda: dead(running) == len(RUNS))
        yield running


def dead(service: Service) -> int:
    """The number of messages that are no longer retried."""
    return len(service.get("/alerts?state=dead&limit=500").json()["alerts"])


@pytest.fixture
def plain(browser: Browser, service: Service) -> Iterator[Page]:
    """A page in a browser without JavaScript."""
    context = browser.new_context(base_url=service.url, java_script_enabled=False)
    yield context.new_page()
    context.close()


def test_messages_are_filtered_paged_and_opened(plain: Page) -> None:
    plain.goto("/alerts")
    rows = plain.locator("#messages tbody tr")
    expect(rows).to_have_count(50)
    expect(rows.first).to_contain_text(RULE)
    expect(rows.first).to_contain_text("2 attempts, last failed")
    plain.get_by_role("link", name="Older").click()
    expect(rows).to_have_count(10)
    plain.locator("#messages").get_by_role("link", name="Dead").click()
    expect(rows).to_have_count(50)  # a filter starts at the newest
    assert "state=dead" in plain.url
    rows.first.locator("th a").first.click()
    expect(plain.locator("h1")).to_contain_text("Message about run r")
    attempts = plain.locator("#message tbody tr")
    expect(attempts).to_have_count(2)
    expect(attempts.first).to_contain_text("failed")
    plain.get_by_role("button", name="Send again").click()
    expect(attempts).not_to_have_count(0)
    plain.goto("/alerts?state=waiting&channel=nobody")
    expect(plain.locator("#messages")).to_contain_text("No message matches")


def test_a_silence_is_listed_and_ended(page: Page, service: Service) -> None:
    acknowledged = {"note": "a known run", "by": "Ada"}
    address = f"{service.url}/api/v1/runs/r7/findings/{RULE}/acknowledgement"
    assert http.put(address, json=acknowledged).status_code == 200
    page.goto("/alerts")
    silence = page.locator("#silences tbody tr")
    expect(silence).to_contain_text("a known run")
    expect(silence).to_contain_text("until it is resolved")
    page.get_by_role("button", name=f"End the silence of {RULE} in run r7").press("Enter")
    expect(page.locator("#silences")).to_contain_text("Nothing is silenced")
    findings: list[dict[str, Any]] = service.get("/runs/r7/findings").json()["findings"]
    assert findings[0]["acknowledged"] is None


def test_a_channel_and_a_route_are_added_and_removed(page: Page) -> None:
    page.goto("/alerts")
    page.get_by_text("Add a channel", exact=True).click()
    channels = page.locator("#channels")
    channels.get_by_label("Name").fill("on-call")
    channels.get_by_label("URL").fill("https://example.org/hook")
    channels.get_by_role("button", name="Add channel").press("Enter")
    expect(page.locator(".secret code")).to_contain_text("whsec_")
    expect(page).to_have_url(re.compile("/alerts$"))  # a reload does not send the form again
    expect(channels).to_contain_text("60 open findings of the last day")
    expect(channels.get_by_role("button", name="Send 60 open findings to on-call")).to_be_visible()
    page.get_by_text("Add a route", exact=True).click()
    routes = page.locator("#routes")
    routes.get_by_label("Rules").fill("scaler.* ddp.*")
    routes.get_by_label("Channel").select_option("on-call")
    routes.get_by_role("button", name="Add route").press("Enter")
    expect(routes.locator("tbody tr")).to_contain_text("scaler.* ddp.*")
    expect(page.get_by_role("button", name="Send 60 open findings")).to_have_count(0)  # not routed
    page.get_by_role("button", name="Remove route 1").press("Enter")
    expect(routes.locator("tbody")).to_have_count(0)
    page.get_by_role("button", name="Send 60 open findings to on-call").press("Enter")
    expect(page.get_by_role("status")).to_have_text("Queued for on-call: 60 findings of 60 runs.")
    page.get_by_role("button", name="Remove on-call").press("Enter")
    expect(page.get_by_role("button", name="Remove on-call")).to_have_count(0)


def test_a_channel_that_makes_no_sense_is_refused_with_the_reason(
    page: Page, service: Service
) -> None:
    response = page.request.post(
        f"{service.url}/alerts/channels", form={"name": "x", "url": "ftp://nowhere"}
    )
    assert response.status == 422
    assert "url" in response.text()


def test_axe_finds_nothing_and_the_page_fits_a_phone(page: Page, service: Service) -> None:
    (message,) = service.get("/alerts?limit=1").json()["alerts"]
    for path in ("/alerts", f"/alerts/messages/{message['id']}"):
        page.set_viewport_size({"width": 390, "height": 844})
        page.emulate_media(color_scheme="light")
        page.goto(path)
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        page.set_viewport_size({"width": 1280, "height": 900})
        assert violations(page) == []
        page.emulate_media(color_scheme="dark")
        assert violations(page, *OF_COLOURS) == []
