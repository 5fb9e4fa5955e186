"""What a browser gets where a request fails: a page with the reason and the way out."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from fastapi import FastAPI
from sqlalchemy.exc import OperationalError

from gradledger_monitor.app import create_app
from gradledger_monitor.config.settings import Settings

HOST = "http://127.0.0.1"
BROWSER = {"Accept": "text/html,application/xhtml+xml"}
FORM = {"Content-Type": "application/x-www-form-urlencoded"}
LARGE = b"note=" + b"x" * 70_000
OUTAGE = OperationalError("select", {}, Exception("database is locked"))


def app_of(folder: Path, **settings: Any) -> FastAPI:
    app = create_app(Settings(db=f"sqlite:///{folder / 'a.db'}", **settings))
    app.state.service.store.migrate()
    return app


@pytest.fixture
def app(tmp_path: Path) -> Iterator[FastAPI]:
    """The service, not started."""
    app = app_of(tmp_path)
    yield app
    app.state.service.store.close()


def ask(app: FastAPI, method: str, path: str, **request: Any) -> httpx2.Response:
    async def send() -> httpx2.Response:
        transport = httpx2.ASGITransport(app, raise_app_exceptions=False)
        async with httpx2.AsyncClient(transport=transport, base_url=HOST) as client:
            response: httpx2.Response = await client.request(method, path, **request)
            return response

    return anyio.run(send)


def assert_page(response: httpx2.Response, status: int, *texts: str) -> None:
    assert response.status_code == status
    assert response.headers["content-type"].startswith("text/html")
    assert "Content-Security-Policy" in response.headers
    assert response.headers["cache-control"] == "no-store"
    for text in ('<header class="top">', *texts):
        assert text in response.text


def raising(error: Exception) -> Any:
    async def raise_it() -> None:
        raise error

    return raise_it


def test_an_error_of_the_service_is_a_page_with_the_id_of_its_log_lines(app: FastAPI) -> None:
    app.add_api_route("/broken", raising(ValueError("a bug")))
    page = ask(app, "GET", "/broken", headers=BROWSER)
    id_ = page.headers["x-request-id"]
    assert_page(page, 500, "<h1>Internal server error</h1>", id_, '<a href="">Try again</a>')
    assert "a bug" not in page.text
    document = ask(app, "GET", "/broken")
    assert document.headers["content-type"] == "application/problem+json"
    assert document.json()["request_id"] == document.headers["x-request-id"]


def test_a_page_without_its_database_tries_again(app: FastAPI) -> None:
    app.add_api_route("/away", raising(OUTAGE), methods=["GET", "POST"])
    page = ask(app, "GET", "/away", headers=BROWSER)
    assert_page(page, 503, "The database is not available.", "reloads by itself", "Try again")
    assert page.headers["refresh"] == page.headers["retry-after"] == "5"
    assert "stored" not in page.text
    form = ask(app, "POST", "/away", headers={**BROWSER, "Referer": f"{HOST}/alerts?x=1"})
    assert_page(form, 503, "Nothing of this request was stored", '<a href="/alerts?x=1">Back')
    assert "refresh" not in form.headers
    assert ask(app, "GET", "/away").headers["content-type"] == "application/problem+json"


def test_a_database_that_is_away_while_a_caller_is_identified_is_an_outage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: str) -> None:
        raise OUTAGE

    app = app_of(tmp_path, access="token")
    monkeypatch.setattr(app.state.service.credentials, "token_of_session", fail)
    cookie = {"Cookie": "gradledger_session=x"}
    page = ask(app, "GET", "/", headers={**BROWSER, **cookie})
    assert_page(page, 503, "The database is not available.")
    assert ask(app, "GET", "/api/v1/runs", headers=cookie).status_code == 503


@pytest.mark.parametrize(
    ("referer", "back"),
    [
        (f"{HOST}/runs/r1", '<a href="/runs/r1">Back to the page</a>'),
        (f"{HOST}//elsewhere/", '<a href="/elsewhere/">Back to the page</a>'),
        ("http://elsewhere/runs/r1", '<p><a href="/">All runs</a></p>'),
        ("", '<p><a href="/">All runs</a></p>'),
    ],
)
def test_a_form_that_is_too_large_leads_back_to_its_page(
    app: FastAPI, referer: str, back: str
) -> None:
    headers = {**BROWSER, **FORM, "Referer": referer}
    page = ask(app, "POST", "/notes", headers=headers, content=LARGE)
    assert_page(page, 413, "<h1>Too large</h1>", "larger than 65,536 bytes. Shorten it.", back)
    document = ask(app, "POST", "/notes", headers=FORM, content=LARGE)
    assert document.headers["content-type"] == "application/problem+json"


def test_a_refused_form_lists_the_fields_that_are_wrong(app: FastAPI) -> None:
    path = f"/runs/{'r' * 200}/tags"
    page = ask(app, "POST", path, headers={**BROWSER, **FORM}, content=b"tag=x")
    assert_page(page, 422, "<h1>Not accepted</h1>", "<li>run: ")


def test_a_form_of_another_site_or_without_a_login_gets_a_page(
    app: FastAPI, tmp_path: Path
) -> None:
    foreign = {**BROWSER, **FORM, "Sec-Fetch-Site": "cross-site"}
    page = ask(app, "POST", "/notes", headers=foreign, content=b"run=r1")
    assert_page(page, 403, "<h1>Not allowed</h1>", "A page of another site sent this request.")
    guarded = app_of(tmp_path, access="token")
    page = ask(guarded, "POST", "/notes", headers={**BROWSER, **FORM}, content=b"run=r1")
    assert_page(page, 401, '<a href="/login">Log in</a>')


def test_a_host_that_is_not_allowed_gets_a_page_with_its_style(app: FastAPI) -> None:
    host = {"Host": "cluster:4777"}
    page = ask(app, "GET", "/", headers={**BROWSER, **host})
    assert_page(page, 421, "Add it to GRADLEDGER_ALLOWED_HOSTS.")
    style = page.text.partition('id="plotly.js-style-global" href="')[2].partition('"')[0]
    assert ask(app, "GET", style, headers=host).status_code == 200


def test_a_caller_above_the_rate_limit_gets_a_page_that_reloads(tmp_path: Path) -> None:
    app = app_of(tmp_path, reads_per_second=0.1)
    pages = [ask(app, "GET", "/docs", headers=BROWSER) for _ in range(2)]
    assert pages[0].status_code == 200
    assert_page(pages[1], 429, "The rate limit is exceeded.", "reloads by itself")
    assert pages[1].headers["refresh"] == pages[1].headers["retry-after"]
