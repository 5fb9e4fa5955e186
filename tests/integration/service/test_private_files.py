"""What gradledger writes on disk is for its own user, whichever part of it writes first."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from gradledger.delivery import spool
from gradledger.delivery.spool import Spool, SpoolLocation
from gradledger_monitor.archive.writer import export
from gradledger_monitor.config.settings import default_database
from gradledger_monitor.store.database import Store
from helpers.batches import fair_step
from helpers.sending import send


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty home, and the umask of most systems."""
    monkeypatch.setenv("HOME", str(tmp_path))
    before = os.umask(0o022)
    yield tmp_path
    os.umask(before)


def mode(path: Path) -> int:
    """The permissions of a file or folder."""
    return stat.S_IMODE(path.stat().st_mode)


def default_spool() -> None:
    """What the hooks do when the service does not answer."""
    waiting = Spool(SpoolLocation(Path(spool.DEFAULT_FOLDER).expanduser(), "http://x:1"), "r.0.1")
    waiting.append(b'{"type":"run"}\n', [b"{}\n"])
    waiting.close()


def default_store() -> Store:
    """The service's own database, open, so that its -wal and -shm are there."""
    store = Store(default_database())
    store.migrate()
    return store


def assert_private(folder: Path) -> None:
    """Every folder is 0700 and every file 0600, from this folder down."""
    paths = [folder, *folder.rglob("*")]
    assert {path: mode(path) for path in paths} == {
        path: 0o700 if path.is_dir() else 0o600 for path in paths
    }


@pytest.mark.parametrize("hooks_first", [True, False])
def test_folder_and_files_are_private_in_either_order(home: Path, hooks_first: bool) -> None:
    if hooks_first:
        default_spool()
    store = default_store()
    default_spool()
    names = {path.name for path in (home / ".gradledger").rglob("*")}
    assert {"gradledger.db", "gradledger.db-wal", "gradledger.db-shm", "spool"} <= names
    assert_private(home / ".gradledger")
    store.close()


@pytest.mark.parametrize("writer", [default_spool, default_store])
def test_our_default_folder_is_tightened(home: Path, writer: object) -> None:
    assert callable(writer)
    (home / ".gradledger").mkdir()
    assert mode(home / ".gradledger") == 0o755
    writer()
    assert mode(home / ".gradledger") == 0o700


def test_a_database_of_an_older_version_is_tightened(home: Path) -> None:
    default_store().close()
    file = home / ".gradledger" / "gradledger.db"
    file.chmod(0o644)
    default_store().close()
    assert mode(file) == 0o600


def test_folders_and_files_that_a_person_chose_stay_as_they_are(tmp_path: Path) -> None:
    chosen = tmp_path / "shared"
    chosen.mkdir()
    chosen.chmod(0o775)
    (chosen / "a.db").touch(0o664)
    (chosen / "a.db").chmod(0o664)
    Store(f"sqlite:///{chosen / 'a.db'}").close()
    Spool(SpoolLocation(chosen, "http://x:1"), "r.0.1").append(b'{"type":"run"}\n', [b"{}\n"])
    assert (mode(chosen), mode(chosen / "a.db")) == (0o775, 0o664)
    assert_private(chosen / "http_x_1")


def test_an_archive_is_private(tmp_path: Path) -> None:
    store = default_store()
    send(store, [fair_step(1)])
    export(store, "r", tmp_path / "r.gradledger")
    assert mode(tmp_path / "r.gradledger") == 0o600
    store.close()
