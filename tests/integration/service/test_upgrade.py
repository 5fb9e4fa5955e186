"""A database at revision 0015 is upgraded and goes on; archives of that time are still read.

The code before tables were renamed wrote both: see tests/fixtures/databases/make.py.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import zstandard
from alembic import command
from alembic.config import Config
from sqlalchemy import Engine, MetaData, func, insert, inspect, select

from gradledger_monitor.alerts.assembly import Alerts
from gradledger_monitor.alerts.enqueue import enqueue_due
from gradledger_monitor.archive.reader import restore
from gradledger_monitor.common.paths import migrations_folder
from gradledger_monitor.config.settings import Settings
from gradledger_monitor.model.findings import Acknowledgement, Finding
from gradledger_monitor.rules.overrides import RuleOverrides
from gradledger_monitor.store.admin import maintenance, overrides, sessions, tokens
from gradledger_monitor.store.alerts import acknowledgements, channels, outbox
from gradledger_monitor.store.database import DatabaseTooOld, Store
from gradledger_monitor.store.runs import event_queries, listing, queries
from gradledger_monitor.store.runs.queries import RunRow, evaluation, get_run
from gradledger_monitor.store.steps.curves import curves
from gradledger_monitor.workers.evaluator import Evaluator
from helpers.batches import EndRecord, fair_step, step
from helpers.command import gradledger
from helpers.postgres import Postgres
from helpers.sending import judged, send

NEW_TABLES = ("code_locations", "layers", "comments", "notes")  # not in the old database
FIXTURES = Path(__file__).parents[2] / "fixtures"
RECENT = 4e9
SECRET = "of-the-fixture"
UNEQUAL = "reduction.token_weights_unequal"


def unpack(folder: Path) -> Path:
    """The database of the fixture as a file."""
    path = folder / "old.db"
    packed = FIXTURES / "databases" / "revision-0015.db.zst"
    path.write_bytes(zstandard.decompress(packed.read_bytes()))
    return path


def upgrade(store: Store, revision: str) -> None:
    """Make the tables of a revision."""
    config = Config()
    config.set_main_option("script_location", str(migrations_folder()))
    with store.writing() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, revision)


def copy(old: Path, url: str) -> None:
    """The same rows in a Postgres whose tables are at that revision."""
    source, target = Store(f"sqlite:///{old}"), Store(url)
    upgrade(target, "0015")
    tables, copies = MetaData(), MetaData()
    tables.reflect(source.engine)
    copies.reflect(target.engine)
    with source.reading() as reading, target.writing() as writing:
        for table in copies.sorted_tables:
            if table.name in tables.tables and table.name != "alembic_version":
                rows = reading.execute(select(tables.tables[table.name])).all()
                values = [with_booleans(table, row._asdict()) for row in rows]
                if values:
                    writing.execute(insert(table), values)
        for name, key in (("runs", "key"), ("alerts", "number")):
            sequence = func.pg_get_serial_sequence(name, key)
            writing.execute(select(func.setval(sequence, 100)))
    source.close()
    target.close()


def with_booleans(table: Any, row: dict[str, Any]) -> dict[str, Any]:
    """A row of SQLite for Postgres, where a boolean is not a number."""
    return {
        name: bool(value) if table.c[name].type.python_type is bool else value
        for name, value in row.items()
    }


@pytest.fixture
def old(backend: str, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Store]:
    """The old database, not yet upgraded, on both kinds."""
    path = unpack(tmp_path)
    server: Postgres | None = None
    url = f"sqlite:///{path}"
    if backend == "postgres":
        server = request.getfixturevalue("postgres")
        url = server.create()
        copy(path, url)
    store = Store(url)
    yield store
    store.close()
    if server is not None:
        server.drop(url)


@pytest.fixture
def upgraded(old: Store) -> Store:
    """The old database, upgraded."""
    old.migrate()
    return old


def row(store: Store, run: str) -> RunRow:
    """The run as the API shows it."""
    run_row = get_run(store, run)
    assert run_row is not None
    return run_row


def findings(store: Store, run: str) -> dict[str, Finding]:
    """The findings of a run by rule."""
    return {finding.rule: finding for finding in evaluation(store, run, now=RECENT).findings}


# ---------------------------------------------------------------- the squashed migration


def schema(engine: Engine) -> dict[str, Any]:
    """Columns, keys and indexes of all tables."""
    inspector = inspect(engine)
    return {
        name: (
            [(c["name"], str(c["type"]), c["nullable"], c["default"])
             for c in inspector.get_columns(name)],
            inspector.get_pk_constraint(name),
            sorted(inspector.get_foreign_keys(name), key=str),
            sorted(map(index, inspector.get_indexes(name)), key=str),
            sorted(inspector.get_unique_constraints(name), key=str),
        )
        for name in inspector.get_table_names()
    }  # fmt: skip


def index(reflected: Any) -> tuple[str, ...]:
    """An index as text, its condition included."""
    options = {name: str(value) for name, value in reflected["dialect_options"].items()}
    return reflected["name"], str(reflected["column_names"]), str(reflected["unique"]), str(options)


def test_the_first_migration_makes_the_tables_of_revision_0015(tmp_path: Path) -> None:
    new = Store(f"sqlite:///{tmp_path / 'new.db'}")
    upgrade(new, "0015")
    with closing(Store(f"sqlite:///{unpack(tmp_path)}")) as old:
        assert schema(new.engine) == schema(old.engine)
    new.close()


def test_a_database_of_an_unreleased_version_is_refused_with_the_way_out(tmp_path: Path) -> None:
    path = unpack(tmp_path)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE alembic_version SET version_num = '0012'")
    url = f"sqlite:///{path}"
    with closing(Store(url)) as store, pytest.raises(DatabaseTooOld):
        store.migrate()
    done = gradledger("serve", environment={**os.environ, "GRADLEDGER_DB": url})
    (line,) = done.stderr.splitlines()
    assert done.returncode == 2
    assert "is too old: its tables, at 0012, were made by an unreleased version" in line
    assert "Export its runs with that version (gradledger export)" in line


# ---------------------------------------------------------------- what is still there


def test_every_row_is_still_there(old: Store) -> None:
    before = row_counts(old)
    old.migrate()
    after = maintenance.rows(old)
    new = [after.pop(table) for table in NEW_TABLES]
    assert new == [0] * len(NEW_TABLES)
    assert sorted(after.values()) == sorted(before.values()) and sum(before.values()) > 150
    assert (after["alert_plans"], after["buckets"]) == (4, 10)


def row_counts(store: Store) -> dict[str, int]:
    """Rows by table, of whatever tables there are; partitions count with their table."""
    tables = MetaData()
    tables.reflect(store.engine)
    with store.reading() as connection:
        return {
            name: connection.scalar(select(func.count()).select_from(table)) or 0
            for name, table in tables.tables.items()
            if name != "alembic_version" and not name[-2:].isdigit()
        }


def test_what_people_and_training_processes_left_is_still_there(upgraded: Store) -> None:
    store = upgraded
    assert [
        run.id for run in listing.matching_runs(store, listing.RunFilter(tag="baseline"), 9)
    ] == ["ended"]
    stalled = findings(store, "stalled")
    assert stalled[UNEQUAL].acknowledged == Acknowledgement("it is only a test", "ann", 1_100.0)
    assert stalled["run.stalled"].acknowledged is None
    (period,) = event_queries.inactive_periods(store, "stalled", 0)
    assert (period.after, period.seconds) == (20, 61.0)
    quarantined = queries.quarantined_steps(store, "ended")
    assert [step.step for step in quarantined.steps] == [3]
    assert len(curves(store, "pruned")["step"]) > 5
    token = tokens.of_secret(store, tokens.PREFIX + SECRET)
    assert token is not None and token.scopes == ("ingest",)
    assert sessions.token_of(store, SECRET, RECENT) == token.id
    assert overrides.read(store, overrides.RULES).value["off"] == ["clip.always_engaged"]
    assert overrides.read(store, overrides.RETENTION).value == {"keep_detail_days": 14.0}


def test_alerts_go_on_where_they_were(upgraded: Store) -> None:
    store = upgraded
    assert [channel.name for channel in channels.stored_channels(store)] == ["hook"]
    alerts = outbox.list_alerts(store)
    states = {alert.state: [one.outcome for one in alert.attempts] for alert in alerts}
    assert states == {"dead": ["failed"], "waiting": ["failed"], "delivered": ["delivered"]}
    (waiting,) = outbox.claim(store, RECENT + 60, 30.0, 9)
    assert (waiting.failures, waiting.attempt) == (1, 2)
    composer = Alerts(Settings(), "http://127.0.0.1", store).composer()
    # what was sent or acknowledged is not sent again
    assert enqueue_due(store, composer, RECENT + 120) == 0
    acknowledgements.remove_acknowledgement(store, "live", UNEQUAL)
    assert enqueue_due(store, composer, RECENT + 10_000) == 1


# ---------------------------------------------------------------- runs go on


def test_a_live_run_continues(upgraded: Store) -> None:
    store = upgraded
    assert row(store, "live").steps == 40
    evaluator = Evaluator(store, overrides=lambda: RuleOverrides(off=("clip.always_engaged",)))
    evaluator.evaluate_pending()
    live, finding = row(store, "live"), findings(store, "live")[UNEQUAL]
    assert (live.steps, finding.first_step, finding.steps) == (50, 1, 50)
    assert finding.acknowledged is not None and not live.earlier_version
    send(store, [*map(step, range(51, 61)), EndRecord(2_000.0)], run="live", now=RECENT)
    Evaluator(store).evaluate_pending()
    assert (row(store, "live").steps, row(store, "live").ended) == (60, True)


def test_a_pruned_run_keeps_its_findings_and_continues(upgraded: Store) -> None:
    store, before = upgraded, curves(upgraded, "pruned")
    (finding,) = findings(store, "pruned").values()
    send(store, [fair_step(n) for n in range(401, 441)], run="pruned")
    Evaluator(store).evaluate_pending()
    pruned = row(store, "pruned")
    assert list(findings(store, "pruned").values()) == [finding]
    assert (pruned.steps, pruned.verdict, pruned.earlier_version) == (440, "broken", True)
    assert "up to step 400" in str(pruned.evaluation_note)
    after = curves(store, "pruned")
    assert after["step"][: len(before["step"]) - 1] == before["step"][:-1]
    late = send(store, [step(7)], run="pruned")
    assert late.stored == 0 and "comes too late" in late.refused.listed[0].reason


def test_the_next_evaluator_restores_what_the_first_one_saved(upgraded: Store) -> None:
    store = upgraded
    for begin in (401, 421):
        send(store, [step(n) for n in range(begin, begin + 20)], run="pruned")
        Evaluator(store).evaluate_pending()
    finding = findings(store, "pruned")[UNEQUAL]
    assert (finding.first_step, finding.since_step, finding.steps) == (150, 401, 90)
    assert judged(store, "pruned") == 440


# ---------------------------------------------------------------- archives


@pytest.mark.parametrize("run", ["pruned", "stalled"])
def test_an_archive_of_that_time_is_read(upgraded: Store, store: Store, run: str) -> None:
    restore(store, FIXTURES / "archives" / f"{run}-of-revision-0015.jsonl.zst")
    Evaluator(store).evaluate_pending()
    original = findings(upgraded, run)
    assert {rule: without_texts(f) for rule, f in findings(store, run).items()} == {
        rule: without_texts(f) for rule, f in original.items()
    }
    assert original[UNEQUAL].acknowledged == findings(store, run)[UNEQUAL].acknowledged
    assert curves(store, run) == curves(upgraded, run)
    periods = [event_queries.inactive_periods(one, run, 0) for one in (store, upgraded)]
    assert periods[0] == periods[1] and len(periods[0]) == (run == "stalled")


def without_texts(finding: Finding) -> Finding:
    """Without the texts of another version of the rules, which had no name for the loss."""
    numbers = {name: value for name, value in finding.evidence.items() if name != "objective"}
    return replace(finding, title="", summary="", fix="", evidence=numbers)
