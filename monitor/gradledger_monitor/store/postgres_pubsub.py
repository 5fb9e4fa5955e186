"""News between processes on one Postgres, by its NOTIFY and LISTEN."""

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
LOOK_EVERY_SECONDS = 0.5  # at whether to end
AGAIN_SECONDS = 1.0
GATHER_SECONDS = 0.02  # a NOTIFY takes a lock that all of the database shares: few, not many


class PostgresPubSub(PubSub):
    """One thread sends, another listens; both outlive a database that is away."""

    def __init__(self, engine: Engine) -> None:
        super().__init__()
        self._engine = engine
        self._waiting: dict[tuple[str, str], str] = {}
        self._lock = threading.Lock()
        self._some = threading.Event()
        self._ending = threading.Event()
        self._threads = [
            threading.Thread(target=work, name=f"gradledger-news-{name}", daemon=True)
            for name, work in (("out", self._send_all), ("in", self._listen_always))
        ]

    def publish(self, topic: str, key: str, message: str = "") -> None:
        with self._lock:
            self._waiting[topic, key] = message or key
        self._some.set()

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._ending.set()
        self._some.set()
        for thread in self._threads:
            if thread.is_alive():
                thread.join()

    # ------------------------------------------------------------------ sending

    def _send_all(self) -> None:
        while not self._ending.is_set():
            self._some.wait()
            self._ending.wait(GATHER_SECONDS)
            self._some.clear()
            with self._lock:
                waiting, self._waiting = self._waiting, {}
            if waiting:
                self._send(waiting)

    def _send(self, waiting: dict[tuple[str, str], str]) -> None:
        told = [{"said": f"{topic} {message}"} for (topic, _), message in waiting.items()]
        try:
            with self._engine.begin() as connection:
                connection.execute(text(f"SELECT pg_notify('{CHANNEL}', :said)"), told)
        except DBAPIError as error:
            # who waits for them looks into the database from time to time
            log.warning("news could not be sent to the other processes: %s", error.orig)

    # ------------------------------------------------------------------ listening

    def _listen_always(self) -> None:
        while not self._ending.is_set():
            try:
                self._listen()
            except DBAPIError as error:
                log.warning("news of other processes cannot be heard: %s", error.orig)
                self._ending.wait(AGAIN_SECONDS)

    def _listen(self) -> None:
        with self._engine.connect() as connection:
            connection = connection.execution_options(isolation_level="AUTOCOMMIT")
            connection.detach()  # it is closed at the end, and never another's
            connection.exec_driver_sql(f"LISTEN {CHANNEL}")
            self._notify_gap()
            driver: Any = connection.connection.dbapi_connection
            while not self._ending.is_set():
                try:
                    for notice in driver.notifies(timeout=LOOK_EVERY_SECONDS):
                        self._deliver(*notice.payload.split(" ", 1))
                except driver_errors(self._engine) as error:
                    raise DBAPIError("LISTEN", {}, error) from error


def driver_errors(engine: Engine) -> type[BaseException]:
    """What the driver raises where SQLAlchemy does not stand between."""
    errors: type[BaseException] = engine.dialect.dbapi.Error  # type: ignore[union-attr]
    return errors


def pubsub_for(store: Store) -> PubSub:
    """The news that the database of a store calls for."""
    if store.engine.dialect.name == "postgresql":
        return PostgresPubSub(store.engine)
    return PubSub()
