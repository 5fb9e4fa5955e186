"""Browsers log in with a token and get a session cookie that only they can use."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import anyio
import httpx2
import pytest

from gradledger_monitor.api.live_events import Event
from gradledger_monitor.api.middleware.credentials import COOKIE, SESSION_SECONDS
from gradledger_monitor.api.routes import live
from gradledger_monitor.app import create_app
from gradledger_monitor.config.settings import Settings
from gradledger_monitor.store.admin import sessions, tokens
from helpers.batches import batch, step
from helpers.guarded import ADMIN, Guarded, guarded_service
from helpers.patience import HANGS
from helpers.sending import send


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    """A service that requires tokens."""
    with guarded_service(tmp_path_factory.mktemp("login")) as running:
        running.send(batch("r1", [step(1)]), ADMIN)
        yield running


def log_in(guarded: Guarded, token: str, after: str = "/", **headers: str) -> httpx2.Response:
    """Send the form."""
    form = {"token": token, "next": after}
    return guarded.ask("POST", "/login", data=form, headers=headers)


def cookie(guarded: Guarded, token: str) -> dict[str, str]:
    """The header of a browser that logged in."""
    return {"Cookie": f"{COOKIE}={log_in(guarded, token).cookies[COOKIE]}"}


def test_a_page_redirects_to_the_login_and_back(guarded: Guarded) -> None:
    refused = guarded.get("/runs/r1?optimizer=0")
    assert refused.status_code == 303
    assert refused.headers["location"] == "/login?next=/runs/r1%3Foptimizer%3D0"
    form = guarded.get(refused.headers["location"])
    assert 'value="/runs/r1?optimizer=0"' in form.text
    done = log_in(guarded, guarded.token("read"), "/runs/r1?optimizer=0")
    assert (done.status_code, done.headers["location"]) == (303, "/runs/r1?optimizer=0")


def test_the_cookie_gives_access_to_pages_and_data(guarded: Guarded) -> None:
    session = cookie(guarded, guarded.token("read"))
    assert "Log out" in guarded.get("/", **session).text
    assert guarded.get("/api/v1/runs/r1/series", **session).status_code == 200
    assert guarded.send(batch("r1", [step(2)])).status_code == 401


def test_a_browser_has_the_scope_of_its_token(guarded: Guarded) -> None:
    path = "/api/v1/runs/nobody/findings/x/acknowledgement"
    for scope, status in (("read", 403), ("admin", 404)):
        session = cookie(guarded, guarded.token(scope))
        answer = guarded.ask("PUT", path, json={"note": "n"}, headers=session)
        assert answer.status_code == status


def test_scripts_and_other_sites_cannot_use_the_cookie(guarded: Guarded) -> None:
    set_cookie = log_in(guarded, ADMIN).headers["set-cookie"].lower()
    assert "httponly" in set_cookie and "samesite=lax" in set_cookie and "secure" not in set_cookie
    assert ADMIN not in set_cookie


def test_the_cookie_is_secure_over_https(tmp_path: Path) -> None:
    with guarded_service(tmp_path, trusted_proxies="127.0.0.1") as guarded:
        set_cookie = log_in(guarded, ADMIN, X_Forwarded_Proto="https").headers["set-cookie"]
        assert "secure" not in set_cookie.lower()  # sent with underscores: ignored
        https = {"X-Forwarded-Proto": "https", "X-Forwarded-For": "192.0.2.7"}
        answer = guarded.ask("POST", "/login", data={"token": ADMIN}, headers=https)
        assert "secure" in answer.headers["set-cookie"].lower()


def test_an_unknown_token_shows_the_form_again(guarded: Guarded) -> None:
    answer = log_in(guarded, "<script>alert(1)</script>")
    assert answer.status_code == 401 and "set-cookie" not in answer.headers
    assert "does not exist" in answer.text and "<script>alert" not in answer.text


@pytest.mark.parametrize("garbage", [b"", b"token", b"\xff\xfe=%", b"token=&token=&next=%00"])
def test_an_invalid_form_is_refused(guarded: Guarded, garbage: bytes) -> None:
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    assert guarded.ask("POST", "/login", content=garbage, headers=form).status_code in (401, 429)


def test_a_form_of_a_megabyte_is_refused(guarded: Guarded) -> None:
    assert guarded.ask("POST", "/login", content=b"x" * 2**20).status_code == 413


@pytest.mark.parametrize(
    "after",
    [
        "//evil.example",
        "/\\evil.example",
        "https://evil.example",
        "javascript:x",
        "/\t/e",
        "/a\nb",
        "",
    ],
)
def test_a_login_redirects_to_no_other_site(guarded: Guarded, after: str) -> None:
    assert log_in(guarded, ADMIN, after).headers["location"] == "/"
    assert 'name="next" value="/"' in guarded.ask("GET", "/login", params={"next": after}).text


def test_an_unknown_cookie_is_refused(guarded: Guarded, tmp_path: Path) -> None:
    with guarded_service(tmp_path) as stranger:
        forged = cookie(stranger, ADMIN)
    real = cookie(guarded, ADMIN)["Cookie"]
    for value in (forged["Cookie"], real[:-2] + "xx", f"{COOKIE}=", f"{COOKIE}=admin"):
        assert guarded.get("/api/v1/runs", Cookie=value).status_code == 401


def test_a_session_ends_when_its_token_is_revoked(guarded: Guarded) -> None:
    token = guarded.token("read")
    session = cookie(guarded, token)
    assert guarded.get("/api/v1/runs", **session).status_code == 200
    guarded.revoke(token)
    assert guarded.get("/api/v1/runs", **session).status_code == 401


def test_another_admin_token_ends_the_sessions_of_the_old_one(tmp_path: Path) -> None:
    with guarded_service(tmp_path) as before:
        session = cookie(before, ADMIN)
        assert before.get("/api/v1/runs", **session).status_code == 200
    with guarded_service(tmp_path, admin_token=ADMIN[::-1]) as after:
        assert after.get("/api/v1/runs", **session).status_code == 401
    with guarded_service(tmp_path) as again:
        assert again.get("/api/v1/runs", **session).status_code == 200


def test_logout_deletes_the_cookie(guarded: Guarded) -> None:
    answer = guarded.ask("POST", "/logout")
    assert answer.status_code == 303 and answer.headers["location"] == "/login"
    assert f'{COOKIE}=""' in answer.headers["set-cookie"]


def test_after_logout_a_copy_of_the_cookie_is_invalid(guarded: Guarded) -> None:
    token = guarded.token("read")
    stolen, other = cookie(guarded, token), cookie(guarded, token)
    assert guarded.get("/api/v1/runs", **stolen).status_code == 200
    guarded.ask("POST", "/logout", headers=stolen)
    assert guarded.get("/api/v1/runs", **stolen).status_code == 401
    assert guarded.get("/", **stolen).headers["location"].startswith("/login")
    assert guarded.get("/api/v1/runs", **other).status_code == 200


def test_every_service_on_a_database_sees_the_logout(tmp_path: Path) -> None:
    with guarded_service(tmp_path) as one, guarded_service(tmp_path) as other:
        session = cookie(one, ADMIN)
        assert other.get("/api/v1/runs", **session).status_code == 200
        other.ask("POST", "/logout", headers=session)
        assert one.get("/api/v1/runs", **session).status_code == 401


def test_a_new_login_ends_the_previous_session(guarded: Guarded) -> None:
    before = cookie(guarded, ADMIN)
    log_in(guarded, ADMIN, **before)
    assert guarded.get("/api/v1/runs", **before).status_code == 401


def test_a_session_expires(guarded: Guarded) -> None:
    token = tokens.of_secret(guarded.store, guarded.token("read"))
    assert token is not None
    old = sessions.create(guarded.store, token.id, time.time() - SESSION_SECONDS, SESSION_SECONDS)
    young = sessions.create(guarded.store, token.id, time.time(), SESSION_SECONDS)
    for secret, status in ((old, 401), (young, 200)):
        session = {"Cookie": f"{COOKIE}={secret}"}
        assert guarded.get("/api/v1/runs", **session).status_code == status


def test_only_the_hash_of_a_session_is_in_the_database(guarded: Guarded) -> None:
    secret = cookie(guarded, ADMIN)["Cookie"].partition("=")[2]
    folder = Path(guarded.store.engine.url.database or "").parent
    content = b"".join(file.read_bytes() for file in folder.iterdir())
    assert tokens.digest(secret).encode() in content and secret.encode() not in content


def test_a_stream_of_events_ends_with_its_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = create_app(Settings(access="token", db=f"sqlite:///{tmp_path / 'a.db'}"))
    state = app.state.service
    state.store.migrate()
    send(state.store, [step(1)], run="r1")
    token = tokens.create(state.store, "someone", ["read"], time.time())[0]
    session = state.credentials.log_in(token)

    def log_out_during_the_stream(*_: object) -> list[Event]:
        state.credentials.log_out(session)
        return []

    async def get_events() -> httpx2.Response:
        transport = httpx2.ASGITransport(app)
        cookies = {COOKIE: session}
        async with httpx2.AsyncClient(
            transport=transport, base_url="http://127.0.0.1", cookies=cookies
        ) as client:
            with anyio.fail_after(HANGS):
                response: httpx2.Response = await client.get("/api/v1/runs/r1/events")
                return response

    monkeypatch.setattr(live, "VALID_SECONDS", 0.0)
    monkeypatch.setattr(live, "current_events", log_out_during_the_stream)
    assert anyio.run(get_events).status_code == 200
    assert anyio.run(get_events).status_code == 401


def test_invalid_tokens_in_the_form_are_rate_limited(tmp_path: Path) -> None:
    with guarded_service(tmp_path) as guarded:
        answers = [log_in(guarded, f"guess-{n}") for n in range(12)]
    assert answers[0].status_code == 401 and answers[-1].status_code == 429
    assert int(answers[-1].headers["retry-after"]) >= 1
    assert "Too many attempts" in answers[-1].text
