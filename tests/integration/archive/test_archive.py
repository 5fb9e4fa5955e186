"""A run as a file: nothing of it is lost, and any store says the same of it."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import zstandard

from gradledger_monitor.archive.layout import DamagedArchive
from gradledger_monitor.archive.reading import is_archive, restore
from gradledger_monitor.archive.writing import export
from gradledger_monitor.findings import Acknowledgement, Judgement
from gradledger_monitor.housekeeping import keep_house
from gradledger_monitor.judge import Judge, judge_pending
from gradledger_monitor.rules.choices import Choices
from gradledger_monitor.store import acknowledging, listing, tagging
from gradledger_monitor.store.curves import Curves, curves
from gradledger_monitor.store.database import Store
from gradledger_monitor.store.reading import UnknownRun, judgement
from gradledger_monitor.store.retention import Policy
from helpers.batches import EndRecord, EvalRecord, fair_step, step
from helpers.postgres import running_postgres
from helpers.sending import judged, send

UNEQUAL = "reduction.token_weights_unequal"


def stored(url: str) -> Store:
    """An empty store."""
    made = Store(url)
    made.migrate()
    return made


def body(path: Path) -> list[str]:
    """The lines of an archive but for the first and the last, which tell of the file itself."""
    with zstandard.open(path, "rt") as file:
        text: str = file.read()
    return text.splitlines()[1:-1]


def said(store: Store) -> tuple[Judgement, Curves]:
    """What is shown of the run."""
    return judgement(store, "r", now=2_000.0), curves(store, "r")


@pytest.fixture
def origin(tmp_path: Path) -> Store:
    """A run of two ranks and 30 steps, judged, tagged and acknowledged."""
    store = stored(f"sqlite:///{tmp_path / 'origin.db'}")
    for rank in (0, 1):
        records = [step(n, sync="averaged") for n in range(1, 31)]
        records[10].norm = float("inf")
        evaluated = EvalRecord(10, 5.0, {"loss": 2.5, "odd": float("nan")})
        send(store, [*records, evaluated, EndRecord(99.0, [30])], rank=rank, world_size=2)
    judge_pending(store, 0)
    acknowledging.acknowledge(store, "r", UNEQUAL, Acknowledgement("known", "ann", 1_000.0))
    tagging.add(store, "r", "mine")
    return store


def taken_in(path: Path, url: str) -> Store:
    """An archive, in a new store and judged there."""
    store = stored(url)
    assert restore(store, path).refused == []
    while judge_pending(store, 0):
        pass
    return store


def test_it_comes_back_whole_on_sqlite_and_on_postgres(origin: Store, tmp_path: Path) -> None:
    path, again = tmp_path / "r.jsonl.zst", tmp_path / "again.jsonl.zst"
    assert export(origin, "r", path).steps == 60
    with running_postgres() as server:
        for url in (f"sqlite:///{tmp_path / 'other.db'}", server.create()):
            other = taken_in(path, url)
            assert said(other) == said(origin)
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
    before = said(origin)
    restored = restore(origin, path)
    assert (restored.stored, restored.refused) == (0, [])
    judge_pending(origin, 0)
    assert said(origin) == before


def test_what_was_given_up_to_make_room_stays_as_it_was_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gradledger_monitor.store.snapshots.EVERY_STEPS", 16)
    origin = stored(f"sqlite:///{tmp_path / 'origin.db'}")
    judge = Judge(origin)
    for begin in range(1, 401, 50):
        send(origin, [fair_step(n) if n != 150 else step(n) for n in range(begin, begin + 50)])
        judge.judge_pending()
    keep_house(origin, Policy(detail_days=1e-9, steps_days=1e-9), Choices())
    send(origin, [fair_step(n) for n in range(401, 421)])
    judge_pending(origin, 0)
    path, again = tmp_path / "r.jsonl.zst", tmp_path / "again.jsonl.zst"
    assert export(origin, "r", path).steps < 100
    other = taken_in(path, f"sqlite:///{tmp_path / 'other.db'}")
    assert said(other) == said(origin)
    export(other, "r", again)
    assert sorted(body(again)) == sorted(body(path))


def test_an_unknown_run_leaves_no_file(origin: Store, tmp_path: Path) -> None:
    with pytest.raises(UnknownRun):
        export(origin, "nobody", tmp_path / "n.jsonl.zst")
    assert list(tmp_path.glob("n.*")) == []


def rewritten(path: Path, lines: list[str]) -> Path:
    """An archive of these lines."""
    with zstandard.open(path, "wt") as file:
        file.write("\n".join(lines) + "\n")
    return path


def test_a_damaged_archive_is_said_to_be_one(origin: Store, tmp_path: Path) -> None:
    path, bad = tmp_path / "r.jsonl.zst", tmp_path / "bad.jsonl.zst"
    export(origin, "r", path)
    with zstandard.open(path, "rt") as file:
        whole = file.read().splitlines()
    newer = json.dumps({**json.loads(whole[0]), "version": 2})
    wrong = {
        "ends too early": whole[:-1],
        "not what was written": [*whole[:5], *whole[6:]],
        "makes no sense": [*whole[:5], "{", *whole[6:]],
        "reads up to 1": [newer, *whole[1:]],
        "begin with the manifest": whole[1:],
    }
    store = stored(f"sqlite:///{tmp_path / 'other.db'}")
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
    origin = stored(f"sqlite:///{tmp_path / 'origin.db'}")
    send(origin, [fair_step(n) for n in range(1, 4_001)])
    path = tmp_path / "r.jsonl.zst"
    written = export(origin, "r", path)
    assert dataclasses.astuple(written) == (4_000 + 2, 4_000)
    other = taken_in(path, f"sqlite:///{tmp_path / 'other.db'}")
    assert judged(other) == 4_000
