"""The login page: logging in, the cookie, logging out."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from helpers.batches import batch, step
from helpers.guarded import ADMIN, Guarded, guarded_service
from helpers.service import Service


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    """A service that requires tokens, with one run."""
    with guarded_service(tmp_path_factory.mktemp("guarded")) as service:
        service.send(batch("r1", [step(1), step(2)]), ADMIN)
        yield service


@pytest.fixture(scope="module")
def service(guarded: Guarded) -> Service:
    """The service of the page."""
    return guarded.service


def log_in(page: Page, token: str) -> None:
    """Fill the form as a person does, without the mouse."""
    expect(page.get_by_label("Token", exact=True)).to_be_focused()
    page.keyboard.type(token)
    page.keyboard.press("Enter")


def test_the_login_leads_to_the_requested_page(page: Page, guarded: Guarded) -> None:
    page.goto("/runs/r1?optimizer=0")
    log_in(page, guarded.token("read"))
    page.wait_for_url("**/runs/r1?optimizer=0")
    expect(page.locator("#charts[data-ready]")).to_be_visible()


def test_no_script_sees_the_cookie(page: Page, guarded: Guarded) -> None:
    page.goto("/")
    log_in(page, guarded.token("read"))
    expect(page.get_by_role("link", name="a run")).to_be_visible()
    assert page.evaluate("document.cookie") == ""
    assert [cookie["name"] for cookie in page.context.cookies()] == ["gradledger_session"]


def test_logging_out_removes_the_cookie(page: Page, guarded: Guarded) -> None:
    page.goto("/")
    log_in(page, guarded.token("read"))
    page.get_by_role("button", name="Log out").click()
    page.wait_for_url("**/login")
    assert page.context.cookies() == []
    page.goto("/runs/r1")
    expect(page.get_by_label("Token", exact=True)).to_be_visible()


def test_a_page_left_open_shows_the_login_once_its_token_is_revoked(
    page: Page, guarded: Guarded
) -> None:
    token = guarded.token("read")
    page.goto("/")
    log_in(page, token)
    expect(page.get_by_role("link", name="a run")).to_be_visible()
    guarded.revoke(token)
    expect(page.get_by_label("Token", exact=True)).to_be_visible()


def test_the_login_fits_a_phone(page: Page) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto("/login")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
