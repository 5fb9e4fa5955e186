"""The files of one process in the spool folder: an ordered, bounded queue of lines on disk.

``FOLDER/URL/RUN.RANK.PID.0001.jsonl``: one file, and the next when it has grown to a share of the
bound, so that what is acknowledged frees its room, and what is oldest can be thinned or dropped.
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
PROCESSES = 8  # the whole folder may hold what so many full processes would
FILES = 32  # of a full process
LARGEST_FILE = 8 * 2**20
THIN_LINES, THIN_PAUSE_SECONDS = 32, 0.005  # room is made for training to run in between


class Place(NamedTuple):
    """Where what cannot be sent to one URL is kept, and how much of it."""

    folder: Path
    url: str
    most_bytes: int = DEFAULT_BYTES

    @property
    def own(self) -> Path:
        """The folder for this URL."""
        return self.folder / (re.sub(r"[^A-Za-z0-9.-]+", "_", self.url).strip("._") or "service")


class Spool:
    """What this process could not send; OSError where the disk does not take or give it."""

    def __init__(self, place: Place, stem: str) -> None:
        self._place, self._stem = place, stem
        self._files: deque[SpoolFile] = deque()
        self._serial = 0
        self._full = max(min(place.most_bytes // FILES, LARGEST_FILE), 4096)

    def __len__(self) -> int:
        return sum(file.records for file in self._files)

    def append(self, head: bytes, lines: list[bytes]) -> int:
        """Put lines at the end; returns how many old ones had to go for it."""
        dropped = 0
        if not self._files or self._files[-1].size >= self._full:
            self._files.append(self._create())
            dropped = self._make_room()
        self._files[-1].append(head, lines)
        return dropped

    def peek(self, most_lines: int, most_bytes: int) -> list[bytes]:
        """The oldest lines, a run record first."""
        return self._files[0].peek(most_lines, most_bytes) if self._files else []

    def advance(self, records: int) -> None:
        """The oldest records are acknowledged; a file of which all are is deleted."""
        while self._files and records:
            step = min(records, self._files[0].records)
            self._files[0].advance(step)
            records -= step
            if not self._files[0].records:
                self._files.popleft().remove()

    def close(self) -> None:
        """Leave the files on the disk, for others to take."""
        for file in self._files:
            file.sync()
            file.close()

    def abandon(self) -> None:
        """Let go without a word: in a forked child, whose parent goes on with them."""
        for file in list(self._files):
            file.close()

    # ------------------------------------------------------------------ the folder

    def _create(self) -> SpoolFile:
        _make_private(self._place.own)
        while True:
            self._serial += 1
            name = f"{self._stem}.{self._serial:04d}{SUFFIX}"
            with suppress(FileExistsError):  # a process of the same number, long ago
                return SpoolFile.create(self._place.own / name)

    def _make_room(self) -> int:
        """Thin the oldest files, or else drop the oldest; returns how many records that cost."""
        dropped, allowed = 0, self._allowed()
        while len(self._files) > 1 and self._bytes() > allowed:
            file = next((f for f in list(self._files)[:-1] if not f.thinned), None)
            if file is None:
                dropped += self._files[0].records
                self._files.popleft().remove()
            else:
                with suppress(OSError):  # it counts as thinned, so the next thing is to drop
                    _thin(file)
        return dropped

    def _bytes(self) -> int:
        return sum(file.size for file in self._files)

    def _allowed(self) -> int:
        everything = PROCESSES * self._place.most_bytes
        others = _folder_bytes(self._place.folder) - self._bytes()
        return min(self._place.most_bytes, everything - others) - self._full


def _make_private(folder: Path) -> None:
    """Create a folder and its missing parents for this user alone; tighten our default folder.

    ``mkdir(parents=True, mode=...)`` gives the mode to the last folder only. A folder that exists
    is somebody's choice and stays as it is, except ``~/.gradledger``, which is ours.
    """
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    for path in reversed(missing):
        path.mkdir(mode=0o700, exist_ok=True)
    default = Path(DEFAULT_FOLDER).expanduser().parent
    if default in folder.parents:
        found = default.stat()
        # Windows has no owners of this kind, nor modes
        if hasattr(os, "getuid") and found.st_uid == os.getuid() and found.st_mode & 0o077:
            default.chmod(0o700)


def orphans(place: Place) -> Iterator[SpoolFile]:
    """Files of dead processes, oldest first. Each is ours while it is open."""
    names = sorted(place.own.glob(f"*{SUFFIX}")) if place.own.is_dir() else []
    for path in names:
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
    """Rewrite what waits in a file with less detail."""
    file.thinned = True
    new = SpoolFile.create(file.path.with_suffix(".thin"))
    head, batch = b"", []
    try:
        for line in file.peek(file.records, file.size):
            if is_run(line):
                head = line
                continue
            batch.append(thin(line))
            if len(batch) == THIN_LINES:
                new.append(head, batch)
                batch = []
                time.sleep(THIN_PAUSE_SECONDS)
        new.append(head, batch)
    except OSError:
        new.remove()
        raise
    file.replace(new)
