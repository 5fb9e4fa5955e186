"""Files that only the user of the service may read: the database, its folder, archives.

SQLite gives ``-wal`` and ``-shm`` the mode of the database file.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from sqlalchemy import URL

from gradledger_monitor.common.paths import data_folder

FOLDER, FILE = 0o700, 0o600
SUFFIXES = ("", "-wal", "-shm")


def create_database_file(url: URL) -> None:
    """Create the file of an SQLite database and its folders, unless they exist.

    Modes of existing ones change only in the default folder. Raises ``OSError``.
    """
    if "uri" in url.query or not url.database:
        return
    path = Path(url.database)
    create_folder(path.parent)
    with suppress(FileExistsError):
        create(path)
    if path.parent == data_folder():
        for suffix in SUFFIXES:
            _make_private(Path(f"{path}{suffix}"), FILE)


def create_folder(folder: Path) -> None:
    """Create a folder and its missing parents. Raises ``OSError``.

    The default folder is made private even if it exists.
    """
    for path in reversed([path for path in (folder, *folder.parents) if not path.exists()]):
        path.mkdir(mode=FOLDER, exist_ok=True)
    if folder == data_folder():
        _make_private(folder, FOLDER)


def create(path: Path) -> None:
    """Create an empty file. Raises ``FileExistsError`` if there is one, and other ``OSError``."""
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, FILE))


def _make_private(path: Path, mode: int) -> None:
    with suppress(OSError):  # it does not exist, or cannot be changed
        status = path.stat()
        if status.st_uid == os.getuid() and status.st_mode & 0o077:
            path.chmod(mode)
