"""`gradledger demo` without its trainings; `make dist` runs all of it in CI."""

from __future__ import annotations

import signal
import socket
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from gradledger_monitor.demo.service import daemon
from helpers import command
from helpers.patience import HANGS


def listens(url: str) -> bool:
    """Whether a server accepts connections at this address."""
    parts = urlsplit(url)
    try:
        socket.create_connection((parts.hostname or "", parts.port or 0), timeout=5).close()
    except ConnectionRefusedError:
        return False
    return True


def test_a_port_in_use_is_not_taken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setenv("GRADLEDGER_PORT", str(port))
        with daemon() as service:
            assert urlsplit(service.url).port != port
            assert service.get("/runs") == {"runs": []}
            assert (tmp_path / ".gradledger" / "gradledger.db").exists()
    assert not listens(service.url)


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_demo_leaves_no_process_running(environ: dict[str, str], sent: int) -> None:
    process = command.start(["demo"], {**environ, "GRADLEDGER_PORT": "0"})
    lines = iter(process.stdout.readline, "")
    url = next(line for line in lines if line.startswith("Dashboard: ")).split()[-1]
    assert listens(url)
    assert "step    1" in next(line for line in lines if "step" in line)
    process.send_signal(sent)
    assert process.communicate(HANGS)[0].endswith("stopped\n")
    assert process.returncode == 0
    assert not listens(url)
