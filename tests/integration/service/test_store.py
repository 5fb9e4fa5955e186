"""The store: migrations, one writer, what readers get."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Row, Table, delete, select, update
from sqlalchemy.exc import OperationalError

from gradledger.records import EvalRecord
from gradledger_monitor.ingest import decode
from gradledger_monitor.store import tables
from gradledger_monitor.store.database import Store
from gradledger_monitor.store.runs.queries import get_run, list_runs, run_info
from gradledger_monitor.store.steps.curves import curves
from gradledger_monitor.store.steps.ingest import store_batch
from helpers import command
from helpers.batches import batch, step
from helpers.patience import HANGS
from helpers.sending import evaluate_pending
from helpers.versions import to_version

Databases = Callable[[], str]


def send(store: Store, body: bytes, now: float = 1.0) -> None:
    """Store a body as ingest does."""
    store_batch(store, decode.read(body), now)


def test_migrations_make_exactly_the_tables(store: Store) -> None:
    with store.reading() as connection:
        options = {"compare_type": True, "include_name": _is_compared}
        context = MigrationContext.configure(connection, opts=options)
        assert compare_metadata(context, tables.metadata) == []


def _is_compared(name: str | None, kind: str, parents: object) -> bool:
    """Postgres lists the parts of a table beside it; only SQLite checks the runs of many rows."""
    if kind == "foreign_key_constraint":
        return name not in ("fk_chunks_run", "fk_facts_run")
    return kind != "table" or name is None or not name[-2:].isdigit()


def test_with_a_run_go_its_steps(store: Store) -> None:
    for run in ("a", "b"):
        send(store, batch(run, [step(1), step(2)]))
    evaluate_pending(store)
    with store.writing() as connection:
        connection.execute(delete(tables.runs).where(tables.runs.c.id == "a"))
    with store.reading() as connection:
        left = [connection.execute(select(t)).all() for t in (tables.chunks, tables.facts)]
    assert [len(rows) for rows in left] == [1, 2]


def test_services_that_start_at_the_same_moment_make_the_tables_once(databases: Databases) -> None:
    environment = {**os.environ, "GRADLEDGER_DB": databases()}
    started = [command.start(["db", "upgrade"], environment) for _ in range(4)]
    outputs = [process.communicate(HANGS)[0] for process in started]
    assert [process.returncode for process in started] == [0] * 4, outputs


def test_migrating_again_changes_nothing(store: Store) -> None:
    send(store, batch("r", [step(1)]))
    store.migrate()
    assert [row.id for row in list_runs(store)] == ["r"]


def test_a_version_back_and_forward_again_keeps_every_row(store: Store) -> None:
    for run in ("a", "b", "c"):
        send(store, batch(run, [step(1), step(2)]))
    evaluate_pending(store, 0)
    before = {table.name: rows(store, table) for table in tables.metadata.sorted_tables}
    to_version(store, "0015")
    store.migrate()
    after = {table.name: rows(store, table) for table in tables.metadata.sorted_tables}
    assert before == after
    send(store, batch("a", [step(2), step(3)]))
    assert len(rows(store, tables.chunks)) == len(before["chunks"]) + 1


def rows(store: Store, table: Table) -> list[Row[Any]]:
    """All rows of a table by its key."""
    with store.reading() as connection:
        return list(connection.execute(select(table).order_by(*table.primary_key)))


def test_a_password_with_a_percent_sign_and_a_folder_that_is_not_there_do_no_harm(
    tmp_path: Path,
) -> None:
    store = Store(f"sqlite:///{tmp_path / '100%' / 'deep' / 'a.db'}")
    store.migrate()
    assert list_runs(store) == []
    store.close()


def test_a_store_in_memory_is_shared_by_threads() -> None:
    store = Store("sqlite://")
    store.migrate()
    bodies = [batch(f"r{n}", [step(1)]) for n in range(8)]
    threads = [threading.Thread(target=send, args=(store, body)) for body in bodies]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(list_runs(store)) == 8
    store.close()


def test_a_commit_waits_for_the_disk(store: Store) -> None:
    with store.reading() as connection:
        if store.engine.dialect.name == "postgresql":
            assert connection.exec_driver_sql("SHOW synchronous_commit").scalar() == "on"
            return
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == 2
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"


def test_two_processes_may_write_at_once(store: Store) -> None:
    other = Store(store.engine.url.render_as_string())  # the same database, locks of its own

    def write(through: Store, rank: int) -> None:
        for number in range(1, 21):
            send(through, batch("r", [step(number)], rank=rank, world_size=2))

    threads = [
        threading.Thread(target=write, args=(through, rank))
        for rank, through in enumerate((store, other))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    evaluate_pending(store)
    other.close()
    assert curves(store, "r")["step"] == list(range(1, 21))


def test_rank_zero_describes_the_run_in_any_order_of_arrival(store: Store) -> None:
    send(store, batch("r", [], rank=1, world_size=2, name="of one", config={"seed": 1}))
    send(store, batch("r", [], rank=0, world_size=2, name="of zero", config={"seed": 0}))
    send(store, batch("r", [], rank=1, world_size=2, name="of one", config={"seed": 1}))
    info = run_info(store, "r")
    assert (info.name, info.config, info.world_size) == ("of zero", {"seed": 0}, 2)


def test_runs_are_listed_newest_first_and_searched_by_words(store: Store) -> None:
    for at, name in enumerate(["plain", "100% sure", "under_score"]):
        send(store, batch(f"r{at}", [], name=name, project=f"p{at}"), now=float(at))
    assert [row.id for row in list_runs(store)] == ["r2", "r1", "r0"]
    assert [row.id for row in list_runs(store, limit=1, offset=1)] == ["r1"]
    found = {
        word: [row.id for row in list_runs(store, search=word)] for word in ("%", "_", "PLAIN")
    }
    assert found == {"%": ["r1"], "_": ["r2"], "PLAIN": ["r0"]}
    assert get_run(store, "nobody") is None


def test_characters_that_a_database_cannot_store_are_replaced_in_names(store: Store) -> None:
    send(store, batch("r", [], name="a\0b"))
    assert list_runs(store)[0].name == "a\N{REPLACEMENT CHARACTER}b"


def test_nan_and_infinity_in_evaluations_stay_different(store: Store) -> None:
    values = {"loss": 1.5, "bad": math.nan, "worse": math.inf}
    send(store, batch("r", [EvalRecord(3, 1.0, values)]))
    with store.reading() as connection:
        rows = connection.execute(select(tables.evals.c.name, tables.evals.c.value)).all()
    assert dict(rows) == {"loss": 1.5, "bad": None, "worse": math.inf}


def test_a_writer_that_reads_first_is_not_overtaken(store: Store) -> None:
    url = store.engine.url.render_as_string(hide_password=False)
    with closing(Store(url, wait=0.1)) as other, store.writing() as connection:
        connection.execute(select(tables.runs)).all()
        if store.engine.dialect.name == "sqlite":  # one writer at a time
            with pytest.raises(OperationalError, match="locked"):
                send(other, batch("second", []))
        else:  # to Postgres these are two rows
            send(other, batch("second", []))
        connection.execute(update(tables.runs).values(name="first"))
    send(store, batch("second", []))
    assert [row.id for row in list_runs(store)] == ["second"]
