"""Pages of other sites in a user's browser can neither read nor change anything."""

from __future__ import annotations

from collections.abc import Iterator

import httpx2
import pytest

from gradledger_monitor.common.hosts import host_from_header, is_own_host
from helpers import http
from helpers.batches import batch, step
from helpers.guarded import ADMIN, Guarded, guarded_service
from helpers.service import Service, running_service

RECORDS = "/api/v1/records"
NDJSON = {"Content-Type": "application/x-ndjson"}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service open to all on this machine, which goes by one name."""
    folder = tmp_path_factory.mktemp("open")
    names = "monitor.example, runs.example"
    with running_service(folder / "a.db", access="auto", allowed_hosts=names) as running:
        yield running


def ask(service: Service, host: str, path: str = "/api/v1/runs") -> httpx2.Response:
    """Send a request with this host name."""
    return http.get(service.url + path, headers={"Host": host})


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.0.0.1:4777", "[::1]:4777", "localhost", "LocalHost:1", "10.1.2.3"]
)
def test_addresses_and_localhost_are_allowed(service: Service, host: str) -> None:
    assert ask(service, host).status_code == 200


@pytest.mark.parametrize("host", ["monitor.example", "runs.example:443", "Monitor.Example."])
def test_a_configured_host_name_is_allowed(service: Service, host: str) -> None:
    assert ask(service, host).status_code == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "[::1",
        "a:b:c",
        "x@y",
        "",
    ],
)
@pytest.mark.parametrize("path", ["/", "/api/v1/runs", "/healthz"])
def test_other_host_names_are_refused(service: Service, host: str, path: str) -> None:
    answer = ask(service, host, path)
    assert answer.status_code == 421
    assert "GRADLEDGER_ALLOWED_HOSTS" in answer.json()["detail"]


def test_a_request_with_a_token_can_use_any_host(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with guarded_service(tmp_path_factory.mktemp("named")) as guarded:
        assert guarded.get("/api/v1/runs", ADMIN, Host="node17.cluster").status_code == 200
        assert guarded.get("/api/v1/runs", "wrong", Host="node17.cluster").status_code == 401
        assert guarded.get("/api/v1/runs", Host="node17.cluster").status_code == 421


def test_a_wildcard_allows_every_host() -> None:
    assert is_own_host("anything.example", ["*"])
    assert host_from_header("[2001:db8::1]:80") == "2001:db8::1"
    assert not is_own_host(host_from_header("127.0.0.1/login?"), ["*"])


@pytest.mark.parametrize(
    "header",
    [
        *(
            "127.0.0.1/login?",
            "a/b",
            "a?b",
            "a#b",
            "a\\b",
            "u@a",
            "a b",
            "a:1:2",
            "a:x",
            "a:\u0661",
        ),
        *("[::1", "[::1]x", "[a/b]", "[]", ":80", "", "-a", "\u00e4.example"),
    ],
)
def test_an_invalid_host_header_names_no_host(header: str) -> None:
    assert host_from_header(header) == ""


@pytest.mark.parametrize(
    "headers",
    [
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},
    ],
    ids=str,
)
def test_a_page_of_another_site_changes_nothing(service: Service, headers: dict[str, str]) -> None:
    run = batch("foreign", [step(1)])
    acknowledgement = "/api/v1/runs/foreign/findings/loop.double_step/acknowledgement"
    for method, path, body in (
        ("POST", RECORDS, run),
        ("PUT", acknowledgement, b'{"note": "n"}'),
        ("POST", "/logout", b""),
        ("POST", "/login", b"token=x"),
    ):
        sent = {**NDJSON, **headers}
        answer = http.request(method, service.url + path, content=body, headers=sent)
        assert answer.status_code == 403, path
        assert "another site" in answer.json()["detail"]
    assert service.get("/runs/foreign").status_code == 404


@pytest.mark.parametrize("headers", [{"Sec-Fetch-Site": "same-origin"}, {"Sec-Fetch-Site": "none"}])
def test_own_pages_and_programs_are_allowed(service: Service, headers: dict[str, str]) -> None:
    assert service.post(batch("own", [step(1)]), **headers).status_code == 200


def test_an_old_browser_sends_only_the_origin(service: Service) -> None:
    assert service.post(batch("old", [step(1)]), Origin=service.url).status_code == 200


def test_a_link_from_another_site_is_allowed(service: Service) -> None:
    answer = http.get(f"{service.url}/", headers={"Sec-Fetch-Site": "cross-site"})
    assert answer.status_code == 200


def test_scripts_of_other_sites_cannot_read_responses(service: Service) -> None:
    headers = {"Origin": "https://evil.example"}
    answer = http.get(f"{service.url}/api/v1/runs", headers=headers)
    assert not [name for name in answer.headers if name.startswith("access-control")]
    assert answer.headers["cross-origin-resource-policy"] == "same-origin"
    asked = {**headers, "Access-Control-Request-Method": "POST"}
    assert http.options(service.url + RECORDS, headers=asked).status_code in (403, 405)


def test_a_guarded_service_hides_its_cookie_from_other_sites(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with guarded_service(tmp_path_factory.mktemp("cookie")) as guarded:
        assert "samesite=lax" in _log_in(guarded).headers["set-cookie"].lower()


def _log_in(guarded: Guarded) -> httpx2.Response:
    return guarded.ask("POST", "/login", data={"token": ADMIN})
