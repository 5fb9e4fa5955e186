"""A database whose snapshots are pickles is upgraded without loading one, and goes on.

The code before snapshots were data wrote it: see tests/fixtures/databases/make.py.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest
import zstandard
from alembic import command
from alembic.config import Config
from sqlalchemy import MetaData, func, insert, inspect, select

from gradledger_monitor.common.paths import migrations_folder
from gradledger_monitor.store import dialects, tables
from gradledger_monitor.store.admin import maintenance
from gradledger_monitor.store.database import Store
from gradledger_monitor.store.runs.queries import RunRow, evaluation, get_run
from gradledger_monitor.store.steps.curves import curves
from gradledger_monitor.workers.evaluator import Evaluator
from helpers.batches import fair_step, step
from helpers.postgres import Postgres
from helpers.sending import judged, send

FIXTURE = Path(__file__).parents[2] / "fixtures" / "databases" / "pickled-snapshots.db.zst"
BEFORE = "0012"


def unpack(folder: Path) -> Path:
    """The database of the fixture as a file."""
    path = folder / "old.db"
    path.write_bytes(zstandard.decompress(FIXTURE.read_bytes()))
    return path


def copy(old: Path, url: str) -> None:
    """The same rows in a Postgres whose tables are of that time."""
    source, target = Store(f"sqlite:///{old}"), Store(url)
    config = Config()
    config.set_main_option("script_location", str(migrations_folder()))
    with target.writing() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, BEFORE)
    then, now = MetaData(), MetaData()
    then.reflect(source.engine)
    now.reflect(target.engine)
    with source.reading() as reading, target.writing() as writing:
        for table in now.sorted_tables:
            if table.name in then.tables and table.name != "alembic_version":
                rows = reading.execute(select(then.tables[table.name])).all()
                values = [fitting(table, row._asdict()) for row in rows]
                if values:
                    writing.execute(insert(table), values)
        keys = select(func.setval(func.pg_get_serial_sequence("runs", "key"), 100))
        writing.execute(keys)
    source.close()
    target.close()


def fitting(table: Any, row: dict[str, Any]) -> dict[str, Any]:
    """A row of SQLite for Postgres, where a truth value is no number."""
    return {
        name: bool(value) if table.c[name].type.python_type is bool else value
        for name, value in row.items()
    }


@pytest.fixture
def old(backend: str, tmp_path: Path, request: pytest.FixtureRequest) -> Any:
    """The URL of the old database, on both kinds."""
    path = unpack(tmp_path)
    if backend == "sqlite":
        yield f"sqlite:///{path}"
        return
    server: Postgres = request.getfixturevalue("postgres")
    url = server.create()
    copy(path, url)
    yield url
    server.drop(url)


def row(store: Store, run: str) -> RunRow:
    """The run as the API shows it."""
    found = get_run(store, run)
    assert found is not None
    return found


def test_it_was_written_by_the_code_of_that_time(tmp_path: Path) -> None:
    with sqlite3.connect(unpack(tmp_path)) as connection:
        states = [state for (state,) in connection.execute("SELECT state FROM snapshots")]
        (revision,) = connection.execute("SELECT version_num FROM alembic_version").fetchone()
    connection.close()
    assert revision == BEFORE and len(states) > 2
    assert all(state.startswith(b"\x78\x01") for state in states)  # zlib, around a pickle


def test_it_is_upgraded_and_both_runs_go_on(old: str) -> None:
    store = Store(old)
    store.migrate()
    assert maintenance.rows(store)["snapshots"] == 0
    pruned, (known,) = row(store, "pruned"), evaluation(store, "pruned").findings
    assert (pruned.verdict, pruned.earlier_version) == ("broken", True)
    assert str(pruned.evaluation_note).startswith("Evaluated by an earlier version: ")
    live = row(store, "live")
    assert (live.steps, live.earlier_version, live.evaluation_note) == (40, False, None)

    Evaluator(store).evaluate_pending()
    live, (found,) = row(store, "live"), evaluation(store, "live").findings
    assert (live.steps, found.first_step, found.steps) == (50, 1, 50)
    assert "another version of gradledger" in str(live.evaluation_note)
    assert not live.earlier_version

    before = curves(store, "pruned")
    send(store, [fair_step(n) for n in range(401, 441)], run="pruned")
    Evaluator(store).evaluate_pending()
    pruned = row(store, "pruned")
    assert evaluation(store, "pruned").findings == [known]
    assert (pruned.steps, pruned.verdict, pruned.earlier_version) == (440, "broken", True)
    assert "up to step 400" in str(pruned.evaluation_note)
    after = curves(store, "pruned")
    assert after["step"][: len(before["step"]) - 1] == before["step"][:-1]
    late = send(store, [step(7)], run="pruned")
    assert late.stored == 0 and "comes too late" in late.refused.listed[0].reason
    store.close()


def test_another_judge_restores_what_the_first_one_saved(old: str) -> None:
    store = Store(old)
    store.migrate()
    for begin in (401, 421):
        send(store, [step(n) for n in range(begin, begin + 20)], run="pruned")
        Evaluator(store).evaluate_pending()
    (found,) = evaluation(store, "pruned").findings
    assert (found.first_step, found.since_step, found.steps) == (150, 401, 90)
    assert judged(store, "pruned") == 440
    store.close()


def test_a_downgrade_leaves_tables_that_the_old_code_knows(old: str) -> None:
    store = Store(old)
    store.migrate()
    Evaluator(store).evaluate_pending()
    config = Config()
    config.set_main_option("script_location", str(migrations_folder()))
    with store.writing() as connection:
        dialects.wait_for_migrations(connection)
        config.attributes["connection"] = connection
        command.downgrade(config, BEFORE)
    with store.reading() as connection:
        columns = {c["name"] for c in inspect(connection).get_columns("snapshots")}
        runs = {c["name"] for c in inspect(connection).get_columns("runs")}
    assert columns == set(tables.snapshots.c.keys()) - {"evaluator"}
    assert runs == set(tables.runs.c.keys()) - {
        "evaluator",
        "earlier_version",
        "evaluation_note",
    }
    store.close()
