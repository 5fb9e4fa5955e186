"""Files of the service that only its own user may read: the database, its folder, archives.

SQLite gives ``-wal`` and ``-shm`` the mode of the database file, so that one decides for all.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from sqlalchemy import URL

from gradledger_monitor.common.paths import data_folder

FOLDER, FILE = 0o700, 0o600
BESIDE = ("", "-wal", "-shm")


def create_database_file(url: URL) -> None:
    """Create the file of an SQLite database and its folders, unless they exist.

    What exists is left as it is, except in our default folder. Raises ``OSError``.
    """
    if "uri" in url.query or not url.database:
        return
    path = Path(url.database)
    create_folder(path.parent)
    with suppress(FileExistsError):
        create(path)
    if path.parent == data_folder():
        for suffix in BESIDE:
            _tighten(Path(f"{path}{suffix}"), FILE)


def create_folder(folder: Path) -> None:
    """Create a folder and its missing parents; tighten our default folder. Raises ``OSError``."""
    for path in reversed([path for path in (folder, *folder.parents) if not path.exists()]):
        path.mkdir(mode=FOLDER, exist_ok=True)
    if folder == data_folder():
        _tighten(folder, FOLDER)


def create(path: Path) -> None:
    """Create an empty file. Raises ``FileExistsError`` if there is one, and other ``OSError``."""
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, FILE))


def _tighten(path: Path, mode: int) -> None:
    with suppress(OSError):  # it is not there, or not ours to change
        found = path.stat()
        if found.st_uid == os.getuid() and found.st_mode & 0o077:
            path.chmod(mode)
