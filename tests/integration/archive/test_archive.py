"""A run as a file: nothing of it is lost, and it is the same in any store."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import os
import pickle
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zstandard

from gradledger_monitor.archive.format import VERSION, DamagedArchive
from gradledger_monitor.archive.reader import is_archive, restore
from gradledger_monitor.archive.writer import export
from gradledger_monitor.model.findings import Acknowledgement, EvaluationResult
from gradledger_monitor.rules.overrides import RuleOverrides
from gradledger_monitor.store.admin.retention import RetentionPolicy
from gradledger_monitor.store.alerts import acknowledgements
from gradledger_monitor.store.database import Store
from gradledger_monitor.store.runs import listing, tags
from gradledger_monitor.store.runs.queries import RunRow, UnknownRun, evaluation, get_run
from gradledger_monitor.store.steps.curves import Curves, curves
from gradledger_monitor.workers.evaluator import Evaluator
from gradledger_monitor.workers.retention import run_retention
from helpers.batches import EndRecord, EvalRecord, fair_step, step
from helpers.postgres import Postgres, running_postgres
from helpers.sending import evaluate_pending, judged, new_store, send

UNEQUAL = "reduction.token_weights_unequal"


def body(path: Path) -> list[str]:
    """The lines of an archive without the first and the last, which describe the file itself."""
    with zstandard.open(path, "rt") as file:
        text: str = file.read()
    return text.splitlines()[1:-1]


def shown(store: Store) -> tuple[EvaluationResult, Curves]:
    """The evaluation and the curves of the run."""
    return evaluation(store, "r", now=2_000.0), curves(store, "r")


@pytest.fixture
def origin(tmp_path: Path) -> Store:
    """A run of two ranks and 30 steps, judged, tagged and acknowledged."""
    store = new_store(tmp_path / "origin.db")
    for rank in (0, 1):
        records = [step(n, sync="averaged") for n in range(1, 31)]
        records[10].norm = float("inf")
        evaluated = EvalRecord(10, 5.0, {"loss": 2.5, "odd": float("nan")})
        send(store, [*records, evaluated, EndRecord(99.0, [30])], rank=rank, world_size=2)
    evaluate_pending(store, 0)
    acknowledgements.acknowledge(store, "r", UNEQUAL, Acknowledgement("known", "ann", 1_000.0))
    tags.add(store, "r", "mine")
    return store


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    """A server for databases."""
    with running_postgres() as server:
        yield server


def stores(folder: Path, postgres: Postgres) -> Iterator[Store]:
    """An empty store of each kind."""
    yield new_store(folder / "other.db")
    store = Store(postgres.create())
    store.migrate()
    yield store


def import_archive(path: Path, store: Store) -> Store:
    """The store, with an archive and its evaluation."""
    assert restore(store, path).refused == 0
    while evaluate_pending(store, 0):
        pass
    return store


def test_it_comes_back_whole_on_sqlite_and_on_postgres(
    origin: Store, tmp_path: Path, postgres: Postgres
) -> None:
    path, again = tmp_path / "r.jsonl.zst", tmp_path / "again.jsonl.zst"
    assert export(origin, "r", path).steps == 60
    for other in stores(tmp_path, postgres):
        import_archive(path, other)
        assert shown(other) == shown(origin)
        assert listing.tags_of(other, ["r"]) == {"r": ["mine"]}
        export(other, "r", again)
        assert body(again) == body(path)
        other.close()


def test_it_is_known_by_its_first_bytes_whatever_it_is_called(
    origin: Store, tmp_path: Path
) -> None:
    export(origin, "r", tmp_path / "incident")
    assert is_archive(tmp_path / "incident")
    (tmp_path / "notes").write_text("(µ/ý")
    assert not is_archive(tmp_path / "notes") and not is_archive(tmp_path)


def test_importing_again_changes_nothing(origin: Store, tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl.zst"
    export(origin, "r", path)
    before = shown(origin)
    restored = restore(origin, path)
    assert (restored.stored, restored.refused) == (0, 0)
    evaluate_pending(origin, 0)
    assert shown(origin) == before


@pytest.fixture(scope="module")
def pruned(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """A run of 420 steps of which 150 to 199 are unequal, and whose first records are pruned.

    Tests read it only.
    """
    store = new_store(tmp_path_factory.mktemp("pruned") / "origin.db")
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr("gradledger_monitor.store.evaluation.snapshots.EVERY_STEPS", 16)
        store_pruned_run(store)
    yield store
    store.close()


def store_pruned_run(store: Store) -> None:
    """Store and evaluate the run of ``pruned``."""
    evaluator = Evaluator(store)
    for begin in range(1, 401, 50):
        steps = range(begin, begin + 50)
        send(store, [step(n) if 150 <= n < 200 else fair_step(n) for n in steps])
        evaluator.evaluate_pending()
    run_retention(store, RetentionPolicy(detail_days=1e-9, steps_days=1e-9), RuleOverrides())
    send(store, [fair_step(n) for n in range(401, 421)])
    evaluate_pending(store, 0)


@pytest.fixture
def archive(pruned: Store, tmp_path: Path) -> Path:
    """The archive of the pruned run."""
    path = tmp_path / "r.jsonl.zst"
    export(pruned, "r", path)
    return path


def test_of_a_pruned_run_findings_and_verdict_are_kept_and_marked(
    pruned: Store, tmp_path: Path, postgres: Postgres
) -> None:
    path, again = tmp_path / "r.jsonl.zst", tmp_path / "again.jsonl.zst"
    assert export(pruned, "r", path).steps < 100
    for other in stores(tmp_path, postgres):
        import_archive(path, other)
        assert shown(other) == shown(pruned)
        origin, imported = row(pruned), row(other)
        assert (imported.verdict, imported.steps, imported.tokens) == ("broken", 420, 16_800)
        assert not origin.earlier_version and imported.earlier_version
        assert "up to step 420" in str(imported.evaluation_note)
        assert "the run was imported" in str(imported.evaluation_note)
        export(other, "r", again)
        assert sorted(body(again)) == sorted(body(path))
        send(other, [step(n) for n in range(421, 431)])
        evaluate_pending(other, 0)
        (finding,) = evaluation(other, "r").findings
        assert (finding.first_step, finding.since_step, finding.steps) == (150, 421, 60)
        other.close()


def test_no_evaluation_state_is_in_an_archive(archive: Path) -> None:
    tables = {line["table"] for line in map(json.loads, body(archive)) if line["type"] == "row"}
    assert tables == {"evaluation", "facts", "finding", "progress", "steps", "buckets"}


def test_the_state_in_an_archive_of_version_1_is_not_read(archive: Path, tmp_path: Path) -> None:
    victim = tmp_path / "victim"

    class Harmful:
        def __reduce__(self) -> Any:
            return Path.touch, (victim,)

    state = base64.b64encode(zlib.compress(pickle.dumps(Harmful()))).decode()
    values = {"level": -1, "steps": 400, "taken": 1.0, "stamp": "0" * 64, "state": state}
    old = [line for line in body(archive) if '"table":"finding"' not in line]
    old = [line for line in old if '"table":"evaluation"' not in line]
    manifest = {"type": "archive", "version": 1, "run": "r", "name": "a", "exported": 1.0}
    reached = base64.b64encode(b"\x81\x00\x00").decode()
    lines = [
        {**manifest, "written_by": "before"},
        {"type": "row", "table": "snapshots", "values": {**values, "reached": reached}},
    ]
    path = closed(tmp_path / "old.jsonl.zst", [*map(json.dumps, lines), *old])
    other = import_archive(path, new_store(tmp_path / "other.db"))
    assert not victim.exists() and judged(other) == 420
    assert row(other).earlier_version and evaluation(other, "r").verdict == "incomplete"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("severity", "fatal"),
        ("lifecycle", 1),
        ("first_step", -1),
        ("optimizer", 2**20),
        ("title", "a\0b"),
        ("summary", ["not", "text"]),
        ("evidence", base64.b64encode(b"\x93").decode()),
        ("evidence", base64.b64encode(b"\x01").decode()),
        ("surprise", 1),
    ],
)
def test_a_finding_of_an_archive_is_checked(
    archive: Path, tmp_path: Path, field: str, value: Any
) -> None:
    with zstandard.open(archive, "rt") as file:
        lines = [json.loads(line) for line in file.read().splitlines()[:-1]]
    (finding,) = (line for line in lines if line.get("table") == "finding")
    finding["values"][field] = value
    other = new_store(tmp_path / "other.db")
    with pytest.raises(ValueError, match=field if field != "evidence" else "finding"):
        restore(other, closed(archive, list(map(json.dumps, lines))))
    assert listing.tags_of(other, ["r"]) == {}
    with pytest.raises(UnknownRun):
        evaluation(other, "r")


def test_a_finding_that_an_archive_has_twice_is_refused(archive: Path, tmp_path: Path) -> None:
    with zstandard.open(archive, "rt") as file:
        lines = file.read().splitlines()[:-1]
    at = next(n for n, line in enumerate(lines) if '"table":"finding"' in line)
    other = new_store(tmp_path / "other.db")
    with pytest.raises(DamagedArchive, match=f"two findings of {UNEQUAL} on optimizer 0"):
        restore(other, closed(archive, [*lines[:at], lines[at], *lines[at:]]))


def test_a_run_that_is_known_by_name_only_takes_the_imported_verdict(
    archive: Path, tmp_path: Path
) -> None:
    other = new_store(tmp_path / "other.db")
    send(other, [])
    evaluate_pending(other, 0)
    restore(other, archive)
    evaluate_pending(other, 0)
    assert row(other).verdict == "broken" and row(other).earlier_version


def test_an_imported_verdict_does_not_replace_one_that_was_reached_here(
    archive: Path, tmp_path: Path
) -> None:
    other = new_store(tmp_path / "other.db")
    send(other, [fair_step(n) for n in range(1, 421)])
    evaluate_pending(other, 0)
    before = evaluation(other, "r")
    restore(other, archive)
    evaluate_pending(other, 0)
    assert evaluation(other, "r") == before and not row(other).earlier_version


def test_only_a_file_is_replaced(origin: Store, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(FileExistsError, match="no file that can be replaced"):
        export(origin, "r", pipe)
    assert pipe.is_fifo()


def test_an_unknown_run_leaves_no_file(origin: Store, tmp_path: Path) -> None:
    with pytest.raises(UnknownRun):
        export(origin, "nobody", tmp_path / "n.jsonl.zst")
    assert list(tmp_path.glob("n.*")) == []


def row(store: Store) -> RunRow:
    """The run as the API shows it."""
    run = get_run(store, "r")
    assert run is not None
    return run


def closed(path: Path, lines: list[str]) -> Path:
    """An archive of these lines, with the closing line."""
    text = "".join(f"{line}\n" for line in lines)
    digest = hashlib.sha256(text.encode()).hexdigest()
    end = json.dumps({"type": "close", "lines": len(lines), "sha256": digest})
    return rewritten(path, [*lines, end])


def rewritten(path: Path, lines: list[str]) -> Path:
    """An archive of these lines."""
    with zstandard.open(path, "wt") as file:
        file.write("\n".join(lines) + "\n")
    return path


def test_a_damaged_archive_is_refused_with_a_reason(origin: Store, tmp_path: Path) -> None:
    path, bad = tmp_path / "r.jsonl.zst", tmp_path / "bad.jsonl.zst"
    export(origin, "r", path)
    with zstandard.open(path, "rt") as file:
        whole = file.read().splitlines()
    newer = json.dumps({**json.loads(whole[0]), "version": VERSION + 1})
    wrong = {
        "it is truncated": whole[:-1],
        "the checksum does not match": [*whole[:5], *whole[6:]],
        "cannot be decoded": [*whole[:5], "{", *whole[6:]],
        "reads up to 3": [newer, *whole[1:]],
        "begin with a manifest": whole[1:],
    }
    store = new_store(tmp_path / "other.db")
    for reason, lines in wrong.items():
        with pytest.raises(DamagedArchive, match=reason):
            restore(store, rewritten(bad, lines))
    bad.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(DamagedArchive):
        restore(store, bad)


def test_a_row_that_an_archive_cannot_hold_is_refused(origin: Store, tmp_path: Path) -> None:
    path, bad = tmp_path / "r.jsonl.zst", tmp_path / "bad.jsonl.zst"
    export(origin, "r", path)
    with zstandard.open(path, "rt") as file:
        whole = file.read().splitlines()
    for table, values in (("tokens", {"id": "x"}), ("tags", {"tag": "x", "run; --": 1})):
        row = json.dumps({"type": "row", "table": table, "values": values})
        with pytest.raises(ValueError, match=table):
            restore(origin, rewritten(bad, [whole[0], row, *whole[1:]]))


def test_thousands_of_records_stream(tmp_path: Path) -> None:
    origin = new_store(tmp_path / "origin.db")
    send(origin, [fair_step(n) for n in range(1, 4_001)])
    path = tmp_path / "r.jsonl.zst"
    written = export(origin, "r", path)
    assert dataclasses.astuple(written) == (4_000 + 2, 4_000)
    other = import_archive(path, new_store(tmp_path / "other.db"))
    assert judged(other) == 4_000
