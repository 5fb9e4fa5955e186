"""Messages between processes on one Postgres database, by NOTIFY and LISTEN."""

from __future__ import annotations

import logging
import threading
from typing import Any

from sqlalchemy import Engine, text
from sqlalchemy.exc import DBAPIError

from gradledger_monitor.common.pubsub import PubSub
from gradledger_monitor.store.database import Store

log = logging.getLogger(__name__)

CHANNEL = "gradledger"
POLL_SECONDS = 0.5  # between two checks whether to stop
RETRY_SECONDS = 1.0
BATCH_SECONDS = 0.02  # each NOTIFY takes a lock of the whole database, so messages are batched


class PostgresPubSub(PubSub):
    """A thread sends, another one receives; both survive outages of the database."""

    def __init__(self, engine: Engine) -> None:
        super().__init__()
        self._engine = engine
        self._unsent: dict[tuple[str, str], str] = {}
        self._lock = threading.Lock()
        self._has_unsent = threading.Event()
        self._stopping = threading.Event()
        self._threads = [
            threading.Thread(target=work, name=f"gradledger-pubsub-{name}", daemon=True)
            for name, work in (("send", self._send_all), ("receive", self._receive_all))
        ]

    def publish(self, topic: str, key: str, message: str = "") -> None:
        with self._lock:
            self._unsent[topic, key] = message or key
        self._has_unsent.set()

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._has_unsent.set()
        for thread in self._threads:
            if thread.is_alive():
                thread.join()

    # ------------------------------------------------------------------ sending

    def _send_all(self) -> None:
        while not self._stopping.is_set():
            self._has_unsent.wait()
            self._stopping.wait(BATCH_SECONDS)
            self._has_unsent.clear()
            with self._lock:
                unsent, self._unsent = self._unsent, {}
            if unsent:
                self._send(unsent)

    def _send(self, unsent: dict[tuple[str, str], str]) -> None:
        payloads = [{"payload": f"{topic} {message}"} for (topic, _), message in unsent.items()]
        try:
            with self._engine.begin() as connection:
                connection.execute(text(f"SELECT pg_notify('{CHANNEL}', :payload)"), payloads)
        except DBAPIError as error:
            # receivers also poll the database
            log.warning("messages to other processes could not be sent: %s", error.orig)

    # ------------------------------------------------------------------ listening

    def _receive_all(self) -> None:
        while not self._stopping.is_set():
            try:
                self._listen()
            except DBAPIError as error:
                log.warning("messages of other processes cannot be received: %s", error.orig)
                self._stopping.wait(RETRY_SECONDS)

    def _listen(self) -> None:
        with self._engine.connect() as connection:
            connection = connection.execution_options(isolation_level="AUTOCOMMIT")
            connection.detach()  # so that it is closed at the end instead of reused
            connection.exec_driver_sql(f"LISTEN {CHANNEL}")
            self._notify_gap()
            driver: Any = connection.connection.dbapi_connection
            while not self._stopping.is_set():
                try:
                    for notification in driver.notifies(timeout=POLL_SECONDS):
                        self._deliver(*notification.payload.split(" ", 1))
                except driver_errors(self._engine) as error:
                    raise DBAPIError("LISTEN", {}, error) from error


def driver_errors(engine: Engine) -> type[BaseException]:
    """The errors of the driver, which it raises when it is used without SQLAlchemy."""
    errors: type[BaseException] = engine.dialect.dbapi.Error  # type: ignore[union-attr]
    return errors


def pubsub_for(store: Store) -> PubSub:
    """The messaging for the database of a store."""
    if store.engine.dialect.name == "postgresql":
        return PostgresPubSub(store.engine)
    return PubSub()
