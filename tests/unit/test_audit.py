"""`make audit` never passes in silence: what was not audited is said."""

from __future__ import annotations

import importlib.util
import json
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import ModuleType

import pytest

FILE = Path(__file__).parents[2] / ".ci" / "audit.py"
VULNERABLE = json.dumps({"vulnerabilities": [{"id": "PYSEC-2019-217"}]})


@pytest.fixture(scope="module")
def audit() -> ModuleType:
    """The script."""
    spec = importlib.util.spec_from_file_location("audit", FILE)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@contextmanager
def answering(status: int, body: str) -> Iterator[str]:
    """The address of a server that answers so."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/"
        finally:
            server.shutdown()
            thread.join()


class Auditor:
    """Notes what it is to audit, and finds something or nothing."""

    def __init__(self, status: int) -> None:
        self._status = status
        self.packages: Sequence[str] = ()

    def __call__(self, packages: Sequence[str]) -> int:
        self.packages = packages
        return self._status


@pytest.mark.parametrize("status", [0, 1])
def test_where_advisories_are_there_the_audit_decides(audit: ModuleType, status: int) -> None:
    auditor = Auditor(status)
    with answering(200, VULNERABLE) as url:
        assert audit.main(url, auditor) == status
    names = [one.partition("==")[0] for one in auditor.packages]
    assert {"starlette", "sqlalchemy"} <= set(names) and "gradledger" not in names
    assert not [one for one in auditor.packages if "+" in one]


@pytest.mark.parametrize(
    ("status", "body"), [(404, ""), (503, ""), (200, "<html>"), (200, "{}"), (200, "[]")]
)
def test_where_they_are_not_the_skip_is_said_and_can_be_a_failure(
    audit: ModuleType,
    status: int,
    body: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    auditor = Auditor(0)
    with answering(status, body) as url:
        assert audit.main(url, auditor) == 0
        assert "SKIPPED" in (printed := capsys.readouterr().out) and url in printed
        monkeypatch.setenv("GRADLEDGER_AUDIT", "required")
        assert audit.main(url, auditor) == 1
        assert "FAILED" in capsys.readouterr().out
    assert auditor.packages == ()


def test_where_nobody_answers_it_is_a_skip_too(
    audit: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        port = nobody.getsockname()[1]
    assert audit.main(f"http://127.0.0.1:{port}/", Auditor(1)) == 0
    assert "SKIPPED" in capsys.readouterr().out


def test_a_service_that_hides_what_is_known_is_not_believed(
    audit: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    with answering(200, '{"vulnerabilities": []}') as url:
        assert audit.main(url, Auditor(0)) == 1
    assert "FAILED" in capsys.readouterr().out
