"""The whole service for one command's sake: on a free port, its database in a passing folder."""

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
from gradledger_monitor.workers.evaluator import evaluate_pending

SECONDS_TO_START = 30
SECONDS_TO_FINISH = 10


class PrivateService:
    """Where to send records, and where to read what became of them."""

    def __init__(self, url: str, store: Store, choices: RuleOverrides) -> None:
        self.url = url
        self.store = store
        self._choices = choices

    def evaluate_all(self) -> None:
        """Judge everything that has come, waiting for no rank: nothing more will."""
        while evaluate_pending(self.store, 0, self._choices):
            pass


@contextmanager
def private_service(choices: RuleOverrides) -> Iterator[PrivateService]:
    """The service, running in a thread of this process until the block is left."""
    with tempfile.TemporaryDirectory(prefix="gradledger-") as folder:
        # constructed, not read: what the environment says is meant for another service
        settings = Settings.model_construct(
            db=f"sqlite:///{Path(folder) / 'check.db'}",
            rules_off=list(choices.off),
            thresholds=choices.thresholds,
        )
        store = Store(settings.db)
        with socket.create_server(("127.0.0.1", 0)) as listening, _serving(settings, listening):
            url = f"http://127.0.0.1:{listening.getsockname()[1]}"
            yield PrivateService(url, store, choices)
        store.close()


@contextmanager
def _serving(settings: Settings, listening: socket.socket) -> Iterator[None]:
    server = _Server(settings)
    thread = threading.Thread(target=server.run, args=([listening],), name="gradledger-service")
    thread.start()
    try:
        if not server.up.wait(SECONDS_TO_START):
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
        self.up = threading.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.up.set()
