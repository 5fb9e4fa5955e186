"""The spool files of one process: an ordered, bounded queue of lines on disk.

A file is named ``FOLDER/URL/RUN.RANK.PID.0001.jsonl``. When it has grown to a share of the limit,
the next file begins. So acknowledged files can be deleted, and the oldest thinned or dropped.
"""

from __future__ import annotations

import os
import re
import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from gradledger.delivery.spool_file import SUFFIX, SpoolFile, is_run
from gradledger.delivery.truncate import thin

DEFAULT_FOLDER = "~/.gradledger/spool"
DEFAULT_BYTES = 256 * 2**20
PROCESSES = 8  # limit of the whole folder, as a multiple of the limit of one process
FILES = 32  # of one process at its limit
MAX_FILE_BYTES = 8 * 2**20
THIN_LINES, THIN_PAUSE_SECONDS = 32, 0.005  # pauses leave processor time for training


class SpoolLocation(NamedTuple):
    """The folder and the size limit of records that could not be sent to one URL."""

    folder: Path
    url: str
    max_bytes: int = DEFAULT_BYTES

    @property
    def directory(self) -> Path:
        """The subfolder for this URL."""
        return self.folder / (re.sub(r"[^A-Za-z0-9.-]+", "_", self.url).strip("._") or "service")


class Spool:
    """Records that this process could not send. Its methods raise OSError if the disk fails."""

    def __init__(self, location: SpoolLocation, stem: str) -> None:
        self._location, self._stem = location, stem
        self._files: deque[SpoolFile] = deque()
        self._serial = 0
        self._full = max(min(location.max_bytes // FILES, MAX_FILE_BYTES), 4096)

    def __len__(self) -> int:
        return sum(file.records for file in self._files)

    def append(self, head: bytes, lines: list[bytes]) -> int:
        """Append lines; returns the number of old records that were dropped to make room."""
        dropped = 0
        if not self._files or self._files[-1].size >= self._full:
            self._files.append(self._create())
            dropped = self._make_room()
        self._files[-1].append(head, lines)
        return dropped

    def peek(self, max_lines: int, max_bytes: int) -> list[bytes]:
        """The oldest lines, starting with a run record."""
        return self._files[0].peek(max_lines, max_bytes) if self._files else []

    def advance(self, records: int) -> None:
        """Mark the oldest records as acknowledged; delete files without pending records."""
        while self._files and records:
            step = min(records, self._files[0].records)
            self._files[0].advance(step)
            records -= step
            if not self._files[0].records:
                self._files.popleft().remove()

    def close(self) -> None:
        """Close the files and leave them on disk for other processes."""
        for file in self._files:
            file.sync()
            file.close()

    def abandon(self) -> None:
        """Close the files in a forked child; the parent continues to use them."""
        for file in list(self._files):
            file.close()

    # ------------------------------------------------------------------ the folder

    def _create(self) -> SpoolFile:
        _make_private(self._location.directory)
        while True:
            self._serial += 1
            name = f"{self._stem}.{self._serial:04d}{SUFFIX}"
            with suppress(FileExistsError):  # left by an earlier process with the same id
                return SpoolFile.create(self._location.directory / name)

    def _make_room(self) -> int:
        """Thin the oldest files, then drop the oldest; returns the number of dropped records."""
        dropped, limit = 0, self._limit()
        while len(self._files) > 1 and self._bytes() > limit:
            file = next((f for f in list(self._files)[:-1] if not f.thinned), None)
            if file is None:
                dropped += self._files[0].records
                self._files.popleft().remove()
            else:
                with suppress(OSError):  # marked as thinned anyway: dropped next
                    _thin(file)
        return dropped

    def _bytes(self) -> int:
        return sum(file.size for file in self._files)

    def _limit(self) -> int:
        folder_limit = PROCESSES * self._location.max_bytes
        other_processes = _folder_bytes(self._location.folder) - self._bytes()
        return min(self._location.max_bytes, folder_limit - other_processes) - self._full


def _make_private(folder: Path) -> None:
    """Create a folder and its missing parents with mode 0700; restrict ``~/.gradledger``, too.

    ``mkdir(parents=True, mode=...)`` applies the mode to the last folder only. The mode of a folder
    that exists is the user's choice and does not change, except for ``~/.gradledger``.
    """
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    for path in reversed(missing):
        path.mkdir(mode=0o700, exist_ok=True)
    default = Path(DEFAULT_FOLDER).expanduser().parent
    if default in folder.parents:
        status = default.stat()
        # Windows has neither numeric owners nor modes.
        if hasattr(os, "getuid") and status.st_uid == os.getuid() and status.st_mode & 0o077:
            default.chmod(0o700)


def take_leftover_files(location: SpoolLocation) -> Iterator[SpoolFile]:
    """Files of processes that have ended, oldest first. Each is locked until it is closed."""
    directory = location.directory
    for path in sorted(directory.glob(f"*{SUFFIX}")) if directory.is_dir() else ():
        file = SpoolFile.take(path)
        if file is not None:
            yield file


def _folder_bytes(folder: Path) -> int:
    total = 0
    for path in folder.rglob(f"*{SUFFIX}"):
        with suppress(OSError):
            total += path.stat().st_size
    return total


def _thin(file: SpoolFile) -> None:
    """Rewrite the pending records of a file with less detail."""
    file.thinned = True
    thinned = SpoolFile.create(file.path.with_suffix(".thin"))
    head, batch = b"", []
    try:
        for line in file.peek(file.records, file.size):
            if is_run(line):
                head = line
                continue
            batch.append(thin(line))
            if len(batch) == THIN_LINES:
                thinned.append(head, batch)
                batch = []
                time.sleep(THIN_PAUSE_SECONDS)
        thinned.append(head, batch)
    except OSError:
        thinned.remove()
        raise
    file.replace(thinned)
