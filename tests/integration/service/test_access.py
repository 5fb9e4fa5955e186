"""Authorization: tokens and scopes, and a service that other machines cannot reach by default."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import anyio
import httpx2
import pytest

from gradledger.delivery.encoding import encode
from gradledger.delivery.http_client import Client
from gradledger.records import RunRecord
from gradledger_monitor.api.scopes import NO_SCOPE, rows
from gradledger_monitor.app import create_app
from gradledger_monitor.config.settings import Settings
from gradledger_monitor.store.admin import tokens
from gradledger_monitor.store.database import Store
from helpers.batches import batch, step
from helpers.command import gradledger
from helpers.guarded import ADMIN, NDJSON, Guarded, guarded_service
from helpers.service import running_service


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    """A service that requires tokens."""
    with guarded_service(tmp_path_factory.mktemp("guarded")) as running:
        running.send(batch("r1", [step(1)]), ADMIN)
        yield running


def test_requests_without_a_token_are_refused(guarded: Guarded) -> None:
    for method, path in (
        ("GET", "/api/v1/runs"),
        ("GET", "/api/v1/runs/r1/events"),
        ("GET", "/api/v1/openapi.json"),
        ("GET", "/metrics"),
        ("POST", "/api/v1/records"),
        ("PUT", "/api/v1/runs/r1/findings/x/acknowledgement"),
        ("GET", "/api/v1/nowhere"),
    ):
        answer = guarded.ask(method, path)
        assert answer.status_code == 401, path
        assert answer.headers["www-authenticate"].startswith("Bearer")
        assert answer.headers["content-type"] == "application/problem+json"
        assert "GRADLEDGER_TOKEN" in answer.json()["detail"]


def test_health_checks_and_the_login_page_are_public(guarded: Guarded) -> None:
    for path in ("/healthz", "/readyz", "/login"):
        assert guarded.get(path).status_code == 200, path


@pytest.mark.parametrize(
    ("scope", "reads", "sends", "changes"),
    [("ingest", 403, 200, 403), ("read", 200, 403, 403), ("admin", 200, 200, 404)],
)
def test_a_token_allows_what_its_scope_allows(
    guarded: Guarded, scope: str, reads: int, sends: int, changes: int
) -> None:
    token = guarded.token(scope)
    assert guarded.get("/api/v1/runs", token).status_code == reads
    assert guarded.get("/metrics", token).status_code == reads
    assert guarded.send(batch("r1", [step(1)]), token).status_code == sends
    path = "/api/v1/runs/nobody/findings/loop.double_step/acknowledgement"
    assert guarded.ask("PUT", path, token, json={"note": "n"}).status_code == changes


def test_every_route_requires_the_scope_in_the_table(tmp_path: Path) -> None:
    with guarded_service(tmp_path, reads_per_second="0") as guarded:
        less = {"ingest": guarded.token("read"), "read": guarded.token("ingest")}
        less["admin"] = guarded.token("ingest", "read")
        for method, pattern, scope in rows():
            path = re.sub(r"{[^}]*}", "1", pattern)
            if scope == NO_SCOPE:
                assert "www-authenticate" not in guarded.ask(method, path).headers, path
                continue
            refused = guarded.ask(method, path)
            logs_in = refused.headers.get("location", "").startswith("/login")
            assert refused.status_code == 401 or logs_in, path
            answer = guarded.ask(method, path, less[scope])
            assert answer.status_code == 403 and f"scope {scope}" in answer.text, path


def test_a_refusal_names_the_scope_that_is_missing(guarded: Guarded) -> None:
    answer = guarded.get("/api/v1/runs", guarded.token("ingest"))
    assert "scope read" in answer.json()["detail"] and "ingest" in answer.json()["detail"]


def test_a_revoked_token_is_refused_at_once(guarded: Guarded) -> None:
    token = guarded.token("read")
    assert guarded.get("/api/v1/runs", token).status_code == 200
    guarded.revoke(token)
    assert guarded.get("/api/v1/runs", token).status_code == 401


def test_an_unknown_token_is_refused(guarded: Guarded) -> None:
    for header in ("Bearer wrong", "Bearer", "Basic dXNlcjpwYXNz", "Bearer \xff"):
        value = header.encode("latin-1")
        answer = guarded.ask("GET", "/api/v1/runs", headers={b"Authorization": value})
        assert answer.status_code == 401, header


# What stands in front of "?" is the path of a URL that is put together from headers.
HOSTS = (
    *("127.0.0.1/login?", "127.0.0.1/static/x?", "127.0.0.1/alerts/answer/x?", "/healthz?"),
    *("127.0.0.1/login#", "x@127.0.0.1/login?", "127.0.0.1:4777/login?", "127.0.0.1\\login?"),
)


@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize("authorization", ["Basic eA==", "Bearer wrong"])
def test_no_host_header_opens_a_route(guarded: Guarded, host: str, authorization: str) -> None:
    headers = {**NDJSON, "Host": host, "Authorization": authorization}
    for method, path, body in (
        ("GET", "/api/v1/runs", b""),
        ("GET", "/", b""),
        ("GET", "/metrics", b""),
        ("POST", "/api/v1/records", batch("through-host", [step(1)])),
        ("PUT", "/api/v1/settings/retention", b'{"keep_detail_days": 1}'),
    ):
        answer = guarded.ask(method, path, headers=headers, content=body)
        assert answer.status_code == 421, path
        assert "GRADLEDGER_ALLOWED_HOSTS" in answer.json()["detail"]
    assert guarded.get("/api/v1/runs/through-host", ADMIN).status_code == 404


def test_a_route_that_requires_more_than_its_path_is_refused(tmp_path: Path) -> None:
    """One that begins like a public path, and ends elsewhere."""
    settings = Settings(access="token", db=f"sqlite:///{tmp_path / 'a.db'}")
    app = create_app(settings)

    @app.get("/{folder}/secrets")
    def show_secrets(folder: str) -> str:
        return f"secrets of {folder}"

    async def get(path: str) -> httpx2.Response:
        transport = httpx2.ASGITransport(app)
        async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            response: httpx2.Response = await client.get(path)
            return response

    answer = anyio.run(get, "/static/secrets")
    assert answer.status_code == 403 and "scope read" in answer.json()["detail"]


def test_only_the_hash_of_a_token_is_in_the_database(guarded: Guarded, tmp_path: Path) -> None:
    secret = guarded.token("read")
    folder = Path(guarded.store.engine.url.database or "").parent
    stored = b"".join(file.read_bytes() for file in folder.iterdir())
    assert tokens.digest(secret).encode() in stored
    assert secret.removeprefix(tokens.PREFIX).encode() not in stored


def test_invalid_tokens_are_rate_limited_but_valid_ones_are_not(tmp_path: Path) -> None:
    with guarded_service(tmp_path) as guarded:
        answers = [guarded.get("/api/v1/runs", f"guess-{n}") for n in range(12)]
        assert [one.status_code for one in answers[:10]] == [401] * 10
        assert answers[-1].status_code == 429
        assert 1 <= int(answers[-1].headers["retry-after"]) <= 5
        assert guarded.get("/api/v1/runs", ADMIN).status_code == 200


def test_a_caller_above_the_rate_limit_gets_retry_after(tmp_path: Path) -> None:
    with guarded_service(tmp_path, reads_per_second="0.5", batches_per_second="0.1") as guarded:
        mine, yours = guarded.token("admin"), guarded.token("admin")
        assert guarded.get("/api/v1/runs", mine).status_code == 200
        slow = guarded.get("/api/v1/runs", mine)
        assert (slow.status_code, slow.headers["retry-after"]) == (429, "2")
        assert guarded.get("/api/v1/runs", yours).status_code == 200
        assert guarded.send(batch("r", [step(1)]), mine).status_code == 200
        assert guarded.send(batch("r", [step(2)]), mine).status_code == 429
        assert guarded.get("/healthz").status_code == 200


def test_the_hooks_send_their_token(guarded: Guarded) -> None:
    lines = [encode(RunRecord("hooked", "hooked")), encode(step(1))]
    valid = guarded.token("ingest")
    for token, outcome in ((None, "retry"), ("wrong", "retry"), (valid, "accepted")):
        client = Client(guarded.url, token)
        assert client.post(lines).outcome == outcome
        client.close()


# ---------------------------------------------------------------- when a token is asked for


@pytest.mark.parametrize(
    ("access", "host", "db", "asked"),
    [
        ("auto", "127.0.0.1", "sqlite:///a.db", False),
        ("auto", "::1", "sqlite:///a.db", False),
        ("auto", "localhost", "sqlite:///a.db", False),
        ("auto", "127.0.0.1", "postgresql+psycopg://host/name", True),
        ("auto", "0.0.0.0", "sqlite:///a.db", True),
        ("auto", "::", "sqlite:///a.db", True),
        ("open", "0.0.0.0", "sqlite:///a.db", False),
        ("token", "127.0.0.1", "sqlite:///a.db", True),
    ],
)
def test_a_token_is_required_except_on_loopback_with_the_embedded_database(
    access: str, host: str, db: str, asked: bool
) -> None:
    assert (
        Settings.model_validate({"access": access, "host": host, "db": db}).requires_token is asked
    )


def test_by_default_no_token_is_required_on_this_machine(tmp_path: Path) -> None:
    with running_service(tmp_path / "a.db", access="auto") as service:
        assert service.post(batch("r", [step(1)])).status_code == 200
        assert service.get("/runs").status_code == 200


def test_it_listens_on_other_addresses_once_a_token_exists(tmp_path: Path) -> None:
    database = tmp_path / "a.db"
    created = _run("token", "create", "ana", "--scope", "read", "--db", f"sqlite:///{database}")
    secret = created.stdout.strip()
    assert secret.startswith(tokens.PREFIX) and secret not in created.stderr
    with running_service(database, access="auto", host="0.0.0.0") as service:
        reach = f"http://127.0.0.1:{service.port}"
        guarded = Guarded(service, Store(f"sqlite:///{database}"))
        service.url = reach
        assert guarded.get("/api/v1/runs").status_code == 401
        assert guarded.get("/api/v1/runs", secret).status_code == 200
        guarded.store.close()


def test_without_a_valid_token_it_does_not_listen_on_other_addresses(tmp_path: Path) -> None:
    db = ("--db", f"sqlite:///{tmp_path / 'a.db'}")
    _run("token", "create", "ana", "--scope", "read", *db)
    token = _run("token", "list", *db).stdout.splitlines()[1].split()[0]
    _run("token", "revoke", token, *db)
    assert "revoked" in _run("token", "list", *db).stdout
    done = gradledger("serve", "--host", "0.0.0.0", "--port", "0", *db)
    assert done.returncode == 2 and "--insecure" in done.stderr


def test_a_token_too_short_to_be_safe_is_refused(tmp_path: Path) -> None:
    short = {**os.environ, "GRADLEDGER_ADMIN_TOKEN": "short", "COLUMNS": "200"}
    done = gradledger("serve", "--db", f"sqlite:///{tmp_path / 'a.db'}", environment=short)
    assert done.returncode == 2 and "GRADLEDGER_ADMIN_TOKEN" in done.stderr
    assert "32" in done.stderr and "'short'" not in done.stderr


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    done = gradledger(*arguments)
    assert done.returncode == 0, done.stderr
    return done
