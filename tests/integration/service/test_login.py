"""Browsers log in with a token and keep a cookie that is worth nothing to anyone else."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from gradledger_monitor.api.middleware.credentials import COOKIE, SESSION_SECONDS
from gradledger_monitor.api.routes.live import VALID_SECONDS
from gradledger_monitor.store.admin import sessions, tokens
from helpers.batches import batch, step
from helpers.guarded import ADMIN, Guarded, guarded_service


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    """A service that asks for tokens."""
    with guarded_service(tmp_path_factory.mktemp("login")) as made:
        made.send(batch("r1", [step(1)]), ADMIN)
        yield made


def log_in(guarded: Guarded, token: str, after: str = "/", **headers: str) -> httpx2.Response:
    """Send the form."""
    form = {"token": token, "next": after}
    return guarded.ask("POST", "/login", data=form, headers=headers)


def cookie(guarded: Guarded, token: str) -> dict[str, str]:
    """The header of a browser that logged in."""
    return {"Cookie": f"{COOKIE}={log_in(guarded, token).cookies[COOKIE]}"}


def test_a_page_leads_to_the_login_and_from_there_back(guarded: Guarded) -> None:
    refused = guarded.get("/runs/r1?optimizer=0")
    assert refused.status_code == 303
    assert refused.headers["location"] == "/login?next=/runs/r1%3Foptimizer%3D0"
    form = guarded.get(refused.headers["location"])
    assert 'value="/runs/r1?optimizer=0"' in form.text
    done = log_in(guarded, guarded.token("read"), "/runs/r1?optimizer=0")
    assert (done.status_code, done.headers["location"]) == (303, "/runs/r1?optimizer=0")


def test_with_the_cookie_pages_and_their_data_are_shown(guarded: Guarded) -> None:
    kept = cookie(guarded, guarded.token("read"))
    assert "Log out" in guarded.get("/", **kept).text
    assert guarded.get("/api/v1/runs/r1/series", **kept).status_code == 200
    assert guarded.send(batch("r1", [step(2)])).status_code == 401


def test_a_browser_may_do_what_its_token_may(guarded: Guarded) -> None:
    known = "/api/v1/runs/nobody/findings/x/acknowledgement"
    for scope, status in (("read", 403), ("admin", 404)):
        kept = cookie(guarded, guarded.token(scope))
        answer = guarded.ask("PUT", known, json={"note": "n"}, headers=kept)
        assert answer.status_code == status


def test_the_cookie_is_kept_from_scripts_and_from_other_sites(guarded: Guarded) -> None:
    said = log_in(guarded, ADMIN).headers["set-cookie"].lower()
    assert "httponly" in said and "samesite=lax" in said and "secure" not in said
    assert ADMIN not in said


def test_over_https_the_cookie_stays_there(tmp_path: Path) -> None:
    with guarded_service(tmp_path, trusted_proxies="127.0.0.1") as guarded:
        said = log_in(guarded, ADMIN, X_Forwarded_Proto="https").headers["set-cookie"]
        assert "secure" not in said.lower()  # httpx sends that name with underscores: not a header
        https = {"X-Forwarded-Proto": "https", "X-Forwarded-For": "192.0.2.7"}
        answer = guarded.ask("POST", "/login", data={"token": ADMIN}, headers=https)
        assert "secure" in answer.headers["set-cookie"].lower()


def test_a_token_that_is_none_gives_the_form_again(guarded: Guarded) -> None:
    answer = log_in(guarded, "<script>alert(1)</script>")
    assert answer.status_code == 401 and "set-cookie" not in answer.headers
    assert "does not exist" in answer.text and "<script>alert" not in answer.text


@pytest.mark.parametrize("garbage", [b"", b"token", b"\xff\xfe=%", b"token=&token=&next=%00"])
def test_a_form_that_makes_no_sense_is_refused(guarded: Guarded, garbage: bytes) -> None:
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
def test_a_login_leads_to_no_other_site(guarded: Guarded, after: str) -> None:
    assert log_in(guarded, ADMIN, after).headers["location"] == "/"
    assert 'name="next" value="/"' in guarded.ask("GET", "/login", params={"next": after}).text


def test_a_cookie_that_is_no_session_of_ours_is_refused(guarded: Guarded, tmp_path: Path) -> None:
    with guarded_service(tmp_path) as stranger:
        forged = cookie(stranger, ADMIN)
    real = cookie(guarded, ADMIN)["Cookie"]
    for value in (forged["Cookie"], real[:-2] + "xx", f"{COOKIE}=", f"{COOKIE}=admin"):
        assert guarded.get("/api/v1/runs", Cookie=value).status_code == 401


def test_a_session_ends_when_its_token_is_revoked(guarded: Guarded) -> None:
    token = guarded.token("read")
    kept = cookie(guarded, token)
    assert guarded.get("/api/v1/runs", **kept).status_code == 200
    guarded.revoke(token)
    assert guarded.get("/api/v1/runs", **kept).status_code == 401


def test_another_admin_token_ends_the_sessions_of_the_old_one(tmp_path: Path) -> None:
    with guarded_service(tmp_path) as before:
        kept = cookie(before, ADMIN)
        assert before.get("/api/v1/runs", **kept).status_code == 200
    with guarded_service(tmp_path, admin_token=ADMIN[::-1]) as after:
        assert after.get("/api/v1/runs", **kept).status_code == 401
    with guarded_service(tmp_path) as again:
        assert again.get("/api/v1/runs", **kept).status_code == 200


def test_logging_out_forgets_the_cookie(guarded: Guarded) -> None:
    answer = guarded.ask("POST", "/logout")
    assert answer.status_code == 303 and answer.headers["location"] == "/login"
    assert f'{COOKIE}=""' in answer.headers["set-cookie"]


def test_after_logout_a_copy_of_the_cookie_is_worthless(guarded: Guarded) -> None:
    token = guarded.token("read")
    stolen, other = cookie(guarded, token), cookie(guarded, token)
    assert guarded.get("/api/v1/runs", **stolen).status_code == 200
    guarded.ask("POST", "/logout", headers=stolen)
    assert guarded.get("/api/v1/runs", **stolen).status_code == 401
    assert guarded.get("/", **stolen).headers["location"].startswith("/login")
    assert guarded.get("/api/v1/runs", **other).status_code == 200


def test_every_service_on_a_database_sees_the_logout(tmp_path: Path) -> None:
    with guarded_service(tmp_path) as one, guarded_service(tmp_path) as other:
        kept = cookie(one, ADMIN)
        assert other.get("/api/v1/runs", **kept).status_code == 200
        other.ask("POST", "/logout", headers=kept)
        assert one.get("/api/v1/runs", **kept).status_code == 401


def test_logging_in_again_ends_the_session_before(guarded: Guarded) -> None:
    before = cookie(guarded, ADMIN)
    log_in(guarded, ADMIN, **before)
    assert guarded.get("/api/v1/runs", **before).status_code == 401


def test_a_session_expires(guarded: Guarded) -> None:
    token = tokens.of_secret(guarded.store, guarded.token("read"))
    assert token is not None
    old = sessions.create(guarded.store, token.id, time.time() - SESSION_SECONDS, SESSION_SECONDS)
    young = sessions.create(guarded.store, token.id, time.time(), SESSION_SECONDS)
    for secret, status in ((old, 401), (young, 200)):
        kept = {"Cookie": f"{COOKIE}={secret}"}
        assert guarded.get("/api/v1/runs", **kept).status_code == status


def test_only_the_hash_of_a_session_is_in_the_database(guarded: Guarded) -> None:
    secret = cookie(guarded, ADMIN)["Cookie"].partition("=")[2]
    folder = Path(guarded.store.engine.url.database or "").parent
    content = b"".join(file.read_bytes() for file in folder.iterdir())
    assert tokens.digest(secret).encode() in content and secret.encode() not in content


def test_a_stream_of_events_ends_with_its_session(tmp_path: Path) -> None:
    with guarded_service(tmp_path) as guarded:
        guarded.send(batch("r1", [step(1)]), ADMIN)
        kept = cookie(guarded, ADMIN)
        url = f"{guarded.url}/api/v1/runs/r1/events"
        with httpx2.stream("GET", url, headers=kept, timeout=2 * VALID_SECONDS) as stream:
            assert stream.status_code == 200
            guarded.ask("POST", "/logout", headers=kept)
            deadline = time.monotonic() + 2 * VALID_SECONDS
            for _ in stream.iter_lines():  # until the service ends it; pings come every 15 seconds
                assert time.monotonic() < deadline


def test_trying_tokens_in_the_form_is_slowed_down(tmp_path: Path) -> None:
    with guarded_service(tmp_path) as guarded:
        answers = [log_in(guarded, f"guess-{n}") for n in range(12)]
    assert answers[0].status_code == 401 and answers[-1].status_code == 429
    assert int(answers[-1].headers["retry-after"]) >= 1
    assert "Too many attempts" in answers[-1].text
