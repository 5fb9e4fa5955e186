"""Requests to the service through real proxies, and requests without a proxy."""

from __future__ import annotations

import os
import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from gradledger.delivery import pipeline
from gradledger.delivery.encoding import encode
from gradledger.delivery.http_client import Client, UploadResult
from gradledger.delivery.proxies import Proxy, ProxyError, parse_proxy, proxy_for
from gradledger.records import RunRecord
from gradledger.settings import Settings
from helpers.batches import step
from helpers.misbehaving import Server, server, takes
from helpers.proxy import connect, running_proxy

from .conftest import Scripts

LINES = [encode(RunRecord("night-1", "a run")), encode(step(1))]
BASIC = "Basic dXNlcjpwQHNz"  # user:p@ss


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    """No proxy settings except those of the test."""
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)


def port(service: Server) -> int:
    """The port of a service."""
    return int(service.listening.getsockname()[1])


def post(url: str, proxy: str | None = None) -> UploadResult:
    """Post one batch."""
    client = Client(url, "secret-token", proxy)
    answer = client.post(LINES)
    client.close()
    return answer


@pytest.mark.parametrize("variable", ["HTTP_PROXY", "http_proxy", "ALL_PROXY"])
def test_a_service_is_reached_through_the_proxy_of_the_environment(
    variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with server(takes) as service, running_proxy(port(service)) as proxy:
        monkeypatch.setenv(variable, f"http://{proxy.address}")
        assert post("http://service.test:4777").outcome == "accepted"
        assert service.steps() == [1]
        assert proxy.lines() == {"POST http://service.test:4777/api/v1/records HTTP/1.1"}
        assert b"Host: service.test:4777" in proxy.heads[0]


def test_a_proxy_address_may_lack_a_scheme_and_have_a_password(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with server(takes) as service, running_proxy(port(service), BASIC) as proxy:
        monkeypatch.setenv("HTTP_PROXY", f"user:p%40ss@{proxy.address}")
        assert post("http://service.test").outcome == "accepted"
        monkeypatch.setenv("HTTP_PROXY", f"user:wrong@{proxy.address}")
        refused = post("http://service.test")
        assert refused.outcome == "retry"
        assert "HTTP status 407: the proxy requires a user" in refused.problem
        assert f"(through the proxy {proxy.address})" in refused.problem
        assert "wrong" not in refused.problem


DIRECT = {
    "the name is excluded": ("http://localhost.test:{port}", {"NO_PROXY": "other,localhost.test"}),
    "the domain is excluded": ("http://a.b.test:{port}", {"NO_PROXY": ".b.test"}),
    "all is excluded": ("http://service.test:{port}", {"no_proxy": "*"}),
    "the network is excluded": (
        "http://10.1.2.3:{port}",
        {"NO_PROXY": "192.168.0.0/16,10.0.0.0/8"},
    ),
    "it is this machine": ("http://127.0.0.1:{port}", {}),
    "it is this machine, by name": ("http://localhost:{port}", {}),
    "it is this machine, in IPv6": ("http://[::1]:{port}", {}),
    "no proxy is for this scheme": ("https://service.test:{port}", {}),
}


@pytest.mark.parametrize("why", DIRECT)
def test_no_proxy_is_used_where(why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    url, environ = DIRECT[why]
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    assert proxy_for(url.format(port=4777)) is None


def test_this_machine_is_reached_directly_unless_a_proxy_is_configured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with server(takes) as service, running_proxy(port(service)) as proxy:
        monkeypatch.setenv("HTTP_PROXY", f"http://{proxy.address}")
        assert post(service.url).outcome == "accepted"
        assert proxy.heads == []
        assert post(service.url, f"http://{proxy.address}").outcome == "accepted"
        assert len(proxy.heads) == 1
        assert post(service.url, "off").outcome == "accepted"
        assert len(proxy.heads) == 1


@pytest.mark.parametrize(
    ("address", "proxy"),
    [
        ("proxy:3128", Proxy(False, "proxy", 3128)),
        ("http://proxy", Proxy(False, "proxy", None)),
        ("https://proxy:1/", Proxy(True, "proxy", 1)),
        ("http://u:p%40@[::1]:3", Proxy(False, "::1", 3, "Basic dTpwQA==")),
    ],
)
def test_addresses_of_proxies(address: str, proxy: Proxy) -> None:
    assert parse_proxy(address) == proxy


@pytest.mark.parametrize(
    "address", ["socks5://user:secret@proxy:1", "http://", "http://a:b", "ftp://a"]
)
def test_an_unsupported_proxy_is_reported_with_a_fix(
    address: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ProxyError) as caught:
        parse_proxy(address)
    assert "secret" not in str(caught.value)
    monkeypatch.setenv("HTTP_PROXY", address)
    answer = post("http://service.test")
    assert answer.outcome == "retry" and answer.problem.startswith("ProxyError: the proxy '")
    settings = Settings.from_environment({"GRADLEDGER_PROXY": address})
    assert settings.proxy is None
    (line,) = capsys.readouterr().err.splitlines() or [""]
    assert not line or line.startswith("gradledger: GRADLEDGER_PROXY is ignored: the proxy '")


def test_a_training_reaches_its_service_through_a_proxy(scripts: Scripts) -> None:
    with server(takes) as service, running_proxy(port(service)) as proxy:
        done = scripts.run(
            "train(3)",
            "http://service.test:4777",
            environ={"HTTP_PROXY": f"http://{proxy.address}", "NO_PROXY": ""},
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert service.steps() == [1, 2, 3]
        assert proxy.heads


# ---------------------------------------------------------------------- over TLS


@contextmanager
def over_tls(service: Server, folder: Path) -> Iterator[int]:
    """The port of a TLS endpoint for ``service.test``, in front of the service."""
    subject = ["-subj", "/CN=service.test", "-addext", "subjectAltName=DNS:service.test"]
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *subject]
    files = ["-keyout", str(folder / "key.pem"), "-out", str(folder / "certificate.pem")]
    subprocess.run([*command, *files], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "certificate.pem", folder / "key.pem")
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=_terminate, args=(listening, context, port(service)))
        thread.start()
        yield int(listening.getsockname()[1])
        listening.shutdown(socket.SHUT_RDWR)
        thread.join()


def _terminate(listening: socket.socket, context: ssl.SSLContext, leads_to: int) -> None:
    """Terminate TLS, as a reverse proxy does."""
    with suppress(OSError):
        while True:
            raw, _ = listening.accept()
            threading.Thread(target=_pass_on, args=(raw, context, leads_to), daemon=True).start()


def _pass_on(raw: socket.socket, context: ssl.SSLContext, leads_to: int) -> None:
    with (
        suppress(OSError),
        context.wrap_socket(raw, server_side=True) as outer,
        socket.create_connection(("127.0.0.1", leads_to)) as inner,
    ):
        connect(outer, inner)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificate")
def test_a_service_over_tls_is_reached_through_a_tunnel_that_sees_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        server(takes) as service,
        over_tls(service, tmp_path) as tls,
        running_proxy(tls, BASIC) as proxy,
    ):
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "certificate.pem"))
        monkeypatch.setenv("HTTPS_PROXY", f"http://user:p%40ss@{proxy.address}")
        accepted = post("https://service.test")
        assert accepted.outcome == "accepted", accepted.problem
        assert service.steps() == [1]
        (head,) = proxy.heads
        assert head.startswith(b"CONNECT service.test:443 HTTP/1.")
        assert b"secret-token" not in head
        monkeypatch.setenv("HTTPS_PROXY", f"http://{proxy.address}")
        refused = post("https://service.test")
        assert refused.outcome == "retry" and "407" in refused.problem
        monkeypatch.setenv("HTTPS_PROXY", f"https://{proxy.address}")
        assert "cannot reach an https service" in post("https://service.test").problem


def test_a_proxy_that_never_answers_does_not_delay_the_end(scripts: Scripts) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        proxy = f"http://127.0.0.1:{silent.getsockname()[1]}"
        code = f"""
from gradledger.session import current
pipeline.EXIT_SECONDS_UNANSWERED = {pipeline.EXIT_SECONDS_UNANSWERED}
uploader.UNANSWERED_SECONDS = 0.05
train(30)
wait_until(lambda: current()._pipeline._uploader.unanswered)
"""
        environ = {"HTTPS_PROXY": proxy, "NO_PROXY": ""}
        done = scripts.run(code, "https://service.test", environ=environ)
    assert done.returncode == 0
    assert scripts.on_disk() == 30
