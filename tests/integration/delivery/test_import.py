"""``gradledger import``: a spool or an export into a service or directly into a database."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gradledger.delivery.encoding import encode
from gradledger.delivery.spool_file import SpoolFile
from gradledger.records import EndRecord, RunRecord
from gradledger_monitor.store.database import Store
from gradledger_monitor.store.runs import queries
from gradledger_monitor.store.runs.queries import step_records
from helpers import command
from helpers.batches import batch, step
from helpers.service import running_service

from .conftest import all_stored

ENDED = EndRecord(9.0, [30])


@pytest.fixture(autouse=True)
def isolated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands run in a folder of their own, without settings."""
    monkeypatch.chdir(tmp_path)
    for name in ("GRADLEDGER_DB", "GRADLEDGER_URL", "GRADLEDGER_CONFIG"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    """A spool with two runs, one of them in two files."""
    folder = tmp_path / "spool" / "http_there_1"
    folder.mkdir(parents=True)
    parts = {"a.0.1.0001": range(1, 21), "a.0.1.0002": range(21, 31), "b.0.2.0001": range(1, 6)}
    for name, numbers in parts.items():
        body = batch(name[0], map(step, numbers))
        (folder / f"{name}.jsonl").write_bytes(body)
    return tmp_path / "spool"


def test_a_folder_is_imported_into_a_service_and_a_second_import_changes_nothing(
    spool: Path,
) -> None:
    with running_service(spool.parent / "gradledger.db") as service:
        done = command.gradledger("import", spool, "--url", service.url)
        assert (done.returncode, done.stderr) == (0, "")
        summary = "3 files, 35 records: 35 stored, 0 already there, 0 refused\n"
        assert done.stdout.startswith(summary)
        title = "error: Token weights differ between micro-batches"
        rule = "(reduction.token_weights_unequal, since step 1)"
        for run, steps in (("a", 30), ("b", 5)):
            verdict = f": BROKEN after {steps} evaluated steps so far: 1 finding\n{title} {rule}\n"
            assert f"{verdict}{service.url}/runs/{run}\n" in done.stdout
        assert all_stored(service, 30, 5)
        again = command.gradledger("import", spool, "--url", service.url)
        assert "0 stored, 35 already there, 0 refused" in again.stdout
    assert len(list(spool.rglob("*.jsonl"))) == 3


def test_a_file_is_imported_into_a_database_and_removed_with_remove(spool: Path) -> None:
    database = f"sqlite:///{spool.parent / 'other.db'}"
    files = sorted(spool.rglob("a.*"))
    done = command.gradledger("import", "--db", database, "--remove", *files)
    assert (done.returncode, done.stderr) == (0, "")
    assert "BROKEN after 30 evaluated steps so far: 1 finding\n" in done.stdout
    assert "http" not in done.stdout  # no service is known
    assert not any(path.exists() for path in files)
    store = Store(database)
    assert [bool(step_records(store, "a", 0, number)) for number in (1, 30, 31)] == [
        True,
        True,
        False,
    ]
    (run,) = queries.list_runs(store)
    assert (run.id, run.steps) == ("a", 30)  # without a service that judges
    store.close()


def test_a_file_that_is_still_written_is_read_and_stays(tmp_path: Path) -> None:
    path = tmp_path / "living.jsonl"
    living = SpoolFile.create(path)
    living.append(encode(RunRecord("living", "living")), [encode(step(1))])
    database = f"sqlite:///{tmp_path / 'other.db'}"
    done = command.gradledger("import", path, "--db", database, "--remove")
    assert done.returncode == 0
    assert "1 stored" in done.stdout
    assert "a process may still write it" in done.stderr
    assert path.exists()
    living.close()


def test_refused_records_are_reported_and_the_file_stays(spool: Path) -> None:
    path = spool / "odd.jsonl"
    path.write_bytes(b'{"type": "odd"}\n' + batch("c", [step(1)]))
    done = command.gradledger(
        "import", path, "--db", f"sqlite:///{spool.parent / 'other.db'}", "--remove"
    )
    assert done.returncode == 1
    assert "1 stored, 0 already there, 1 refused" in done.stdout
    assert "odd.jsonl: 1 refused" in done.stderr
    assert path.exists()


def test_an_import_uses_the_proxy_that_the_hooks_use(spool: Path) -> None:
    nobody = {**os.environ, "GRADLEDGER_PROXY": "http://127.0.0.1:9"}
    there = ("--url", "http://service.invalid:4777")
    done = command.gradledger("import", spool, *there, environment=nobody)
    assert done.returncode == 1
    assert "(through the proxy 127.0.0.1:9)" in done.stderr


def test_a_service_that_is_down_is_reported_and_nothing_is_removed(
    spool: Path, nowhere: str
) -> None:
    done = command.gradledger("import", spool, "--url", nowhere, "--remove")
    assert done.returncode == 1
    assert "the destination accepts no records (Connection refused" in done.stderr
    assert len(list(spool.rglob("*.jsonl"))) == 3


@pytest.mark.parametrize(
    "words",
    [
        ["import", "no-such-file"],
        ["import", ".", "--url", "nonsense"],
        ["import", ".", "--db", "nonsense"],
        ["import", ".", "--db", "sqlite://", "--url", "http://there:1"],
    ],
)
def test_bad_usage_exits_2(words: list[str]) -> None:
    assert command.gradledger(*words).returncode == 2
