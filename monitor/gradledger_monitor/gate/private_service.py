"""A service for one command: in a thread, on a free port, with a database in a temporary folder."""

from __future__ import annotations

import socket
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import uvicorn

from gradledger_monitor.app import create_app
from gradledger_monitor.config.settings import Settings
from gradledger_monitor.rules.overrides import RuleOverrides
from gradledger_monitor.store.database import Store
from gradledger_monitor.workers.evaluator import evaluate_all

SECONDS_TO_START = 30
SECONDS_TO_FINISH = 10


class PrivateService:
    """The URL to send records to, and the store to read the evaluation from."""

    def __init__(self, url: str, store: Store, overrides: RuleOverrides) -> None:
        self.url = url
        self.store = store
        self._overrides = overrides

    def evaluate_all(self) -> None:
        """Evaluate all records without waiting for missing ranks: no more records will arrive."""
        evaluate_all(self.store, self._overrides)


@contextmanager
def private_service(overrides: RuleOverrides) -> Iterator[PrivateService]:
    """A service that runs in a thread of this process for the length of the block."""
    with tempfile.TemporaryDirectory(prefix="gradledger-") as folder:
        # Not from the environment, whose settings are for another service.
        settings = Settings.model_construct(
            db=f"sqlite:///{Path(folder) / 'check.db'}",
            rules_off=list(overrides.off),
            thresholds=overrides.thresholds,
        )
        store = Store(settings.db)
        with socket.create_server(("127.0.0.1", 0)) as listener, _serving(settings, listener):
            url = f"http://127.0.0.1:{listener.getsockname()[1]}"
            yield PrivateService(url, store, overrides)
        store.close()


@contextmanager
def _serving(settings: Settings, listener: socket.socket) -> Iterator[None]:
    server = _Server(settings)
    thread = threading.Thread(target=server.run, args=([listener],), name="gradledger-service")
    thread.start()
    try:
        if not server.ready.wait(SECONDS_TO_START):
            raise RuntimeError("the private service did not start")
        yield
    finally:
        server.should_exit = True
        thread.join()


class _Server(uvicorn.Server):
    def __init__(self, settings: Settings) -> None:
        config = uvicorn.Config(
            create_app(settings), log_level="warning", timeout_graceful_shutdown=SECONDS_TO_FINISH
        )
        super().__init__(config)
        self.ready = threading.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.ready.set()
