"""Runs that are deleted or noted: in both databases, over HTTP, in an archive."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import Table, func, select

from gradledger_monitor.archive import reader, writer
from gradledger_monitor.store import tables
from gradledger_monitor.store.database import Store
from gradledger_monitor.store.runs import deletion, listing, notes
from gradledger_monitor.store.runs.notes import Note
from gradledger_monitor.store.runs.queries import UnknownRun, get_run
from gradledger_monitor.workers.evaluator import Evaluator
from helpers.batches import batch, eventually, fair_step, step
from helpers.guarded import ADMIN, guarded_service
from helpers.patience import HANGS
from helpers.sending import new_store, send

NOTE = Note("after the new collator", "Ada", 5.0)


@pytest.fixture
def store(stores: Callable[[], Store]) -> Store:
    """A store with two evaluated runs."""
    opened = stores()
    for run, make in (("first", step), ("second", fair_step)):
        send(opened, [make(n) for n in range(1, 9)], run=run)
    Evaluator(opened).evaluate_pending()
    return opened


def of_runs() -> list[Table]:
    """The tables that hold something of a run."""
    return [table for table in tables.metadata.sorted_tables if "run" in table.c]


def rows_of(store: Store, key: int) -> dict[str, int]:
    with store.reading() as connection:
        counted = {
            table.name: connection.scalar(
                select(func.count()).select_from(table).where(table.c.run == key)
            )
            for table in of_runs()
        }
    return {name: count for name, count in counted.items() if count}


def key_of(store: Store, run: str) -> int:
    with store.reading() as connection:
        query = select(tables.runs.c.key).where(tables.runs.c.id == run)
        return int(connection.scalars(query).one())


def test_a_deleted_run_leaves_nothing_and_other_runs_stay(store: Store) -> None:
    notes.write(store, "first", NOTE)
    first, second = key_of(store, "first"), key_of(store, "second")
    others = rows_of(store, second)
    assert {"chunks", "facts", "findings", "notes"} <= rows_of(store, first).keys()
    deletion.delete_run(store, "first")
    assert get_run(store, "first") is None
    assert rows_of(store, first) == {}
    assert rows_of(store, second) == others
    with pytest.raises(UnknownRun):
        deletion.delete_run(store, "first")


def test_a_run_that_is_deleted_while_it_is_evaluated_is_no_failure(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    send(store, [fair_step(9)], run="second")
    evaluator = Evaluator(store, yield_to_ingest=lambda: _delete_once(store, "second"))
    evaluator.evaluate_pending()
    assert (evaluator.failed, caplog.records) == ([], [])
    assert get_run(store, "second") is None


def _delete_once(store: Store, run: str) -> None:
    if get_run(store, run) is not None:
        deletion.delete_run(store, run)


def test_a_deleted_run_that_sends_again_is_evaluated_from_its_new_records(store: Store) -> None:
    evaluator = Evaluator(store)
    send(store, [fair_step(9)], run="second")
    evaluator.evaluate_pending()  # its state is in memory now
    deletion.delete_run(store, "second")
    send(store, [step(10), step(11)], run="second")
    evaluator.evaluate_pending()
    row = get_run(store, "second")
    assert row is not None
    assert (row.steps, row.verdict) == (2, "broken")


def test_a_note_is_replaced_found_by_the_search_and_removed(store: Store) -> None:
    notes.write(store, "first", Note("something else", None, 1.0))
    notes.write(store, "first", NOTE)
    assert notes.notes_of(store, ["first", "second"]) == {"first": NOTE}
    matching = listing.matching_runs(store, listing.RunFilter(search="NEW coll"), 10)
    assert [row.id for row in matching] == ["first"]
    notes.write(store, "first", Note("", "Ada", 6.0))
    assert notes.notes_of(store, ["first"]) == {}


def test_a_note_is_in_the_archive_of_its_run(store: Store, tmp_path: Path) -> None:
    notes.write(store, "first", NOTE)
    archive = tmp_path / "first.jsonl.zst"
    writer.export(store, "first", archive)
    other = new_store(tmp_path / "other.db")
    reader.restore(other, archive)
    assert notes.notes_of(other, ["first"]) == {"first": NOTE}
    other.close()


def test_deletion_needs_the_scope_admin_and_is_logged(tmp_path: Path) -> None:
    with guarded_service(tmp_path) as guarded:
        guarded.send(batch("r1", [step(1)]), ADMIN)
        page = {"Accept": "text/html", "Content-Type": "application/x-www-form-urlencoded"}
        form = {"content": b"run=r1&confirmed=yes", "headers": page}
        read, admin = guarded.token("read", "ingest"), guarded.token("admin")
        assert guarded.ask("DELETE", "/api/v1/runs/r1", read).status_code == 403
        assert guarded.ask("POST", "/deletion", read, **form).status_code == 403
        assert "/deletion" not in guarded.get("/runs/r1", read, Accept="text/html").text
        assert guarded.get("/api/v1/runs/r1", read).status_code == 200
        assert guarded.ask("DELETE", "/api/v1/runs/r1", admin).status_code == 204
        assert guarded.ask("DELETE", "/api/v1/runs/r1", admin).status_code == 404
        assert eventually(
            HANGS,
            lambda: "run r1 was deleted with the token someone" in "".join(guarded.service.output),
        )
