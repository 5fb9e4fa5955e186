"""An append-only file of JSON lines that are not sent yet, and its lock.

Its first line is the run record, repeated whenever it changes, so that the file can be read alone.
The process that opens the file holds a kernel lock on it. The lock ends with the process, however
the process ends, so a file that can be locked has no owner. Only the holder of the lock deletes the
file, and only after the service has acknowledged all of it.

Writes do not call fsync. If a process is killed, no written line is lost. If the machine loses
power, lines that the kernel has not flushed are lost. ``Spool.close`` calls fsync once.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from gradledger.delivery import platform_files

SUFFIX = ".jsonl"
CHUNK_BYTES = 2**20

_RUN = re.compile(rb'"type"\s*:\s*"run"')


class SpoolFile:
    """An open, locked file and the position of the first line that is not acknowledged."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self.thinned = False
        self.records = 0  # that this process wrote and that are not acknowledged
        self.size = os.fstat(descriptor).st_size
        self._descriptor = descriptor
        self._position = 0  # of the first line that is not acknowledged
        self._head = b""  # the run record that applies there
        self._written_head = b""

    @classmethod
    def create(cls, path: Path) -> SpoolFile:
        """Create and lock a file before others can see it; FileExistsError if there is one."""
        if path.exists():
            raise FileExistsError(path)
        # Other processes take files with the final suffix only, so the file has a temporary name
        # until it is locked. Where an open file cannot be renamed, others cannot delete it either,
        # and no temporary name is needed.
        initial_path = path.with_suffix(".new") if platform_files.RENAMES_OPEN_FILES else path
        mode = os.O_TRUNC if initial_path != path else os.O_EXCL
        descriptor = os.open(
            initial_path, os.O_RDWR | os.O_CREAT | mode | platform_files.BINARY, 0o600
        )
        with suppress(OSError):  # without locks, no other process takes the file either
            platform_files.lock(descriptor)
        if initial_path != path:
            os.rename(initial_path, path)
        return cls(path, descriptor)

    @classmethod
    def take(cls, path: Path) -> SpoolFile | None:
        """Open and lock an existing file; None if another process holds it or it was deleted."""
        try:
            file = cls.read(path)
        except OSError:
            return None
        try:
            locked = platform_files.lock(file._descriptor)
            if locked and os.path.samestat(os.fstat(file._descriptor), os.stat(path)):
                return file
        except OSError:
            pass
        file.close()
        return None

    @classmethod
    def read(cls, path: Path) -> SpoolFile:
        """Open an existing file without a lock, only to read it."""
        try:
            # some file systems can lock only writable files
            return cls(path, os.open(path, os.O_RDWR | platform_files.BINARY))
        except (PermissionError, IsADirectoryError):
            return cls(path, os.open(path, os.O_RDONLY | platform_files.BINARY))

    # ------------------------------------------------------------------ writing

    def append(self, head: bytes, lines: list[bytes]) -> None:
        """Write all lines or none; raises OSError if the disk fails."""
        data = b"".join(lines if head == self._written_head else [head, *lines])
        try:
            self._write(data)
        except OSError:
            with suppress(OSError):
                os.ftruncate(self._descriptor, self.size)
            raise
        self.size += len(data)
        self.records += len(lines)
        self._written_head = head

    def _write(self, data: bytes) -> None:
        rest, position = memoryview(data), self.size
        while rest:
            written = platform_files.write_at(self._descriptor, rest, position)
            rest, position = rest[written:], position + written

    # ------------------------------------------------------------------ reading from the position

    def peek(self, max_lines: int, max_bytes: int) -> list[bytes]:
        """A run record and the records that follow; empty if no record is left."""
        batch, size, count = [self._head] if self._head else [], 0, 0
        for line in self._lines():
            size, run = size + len(line), is_run(line)
            if not run and (count == max_lines or (count and size > max_bytes)):
                break
            batch.append(line)
            count += not run
        return batch if count else []

    def advance(self, records: int) -> None:
        """Mark ``records`` records as acknowledged."""
        for line in self._lines():
            if is_run(line):
                self._head = line
            elif records == 0:
                break
            else:
                records -= 1
                self.records -= 1
            self._position += len(line)

    def _lines(self) -> Iterator[bytes]:
        """Complete lines; skips the torn last line of a process that died while writing."""
        position, rest = self._position, b""
        while chunk := platform_files.read_at(self._descriptor, CHUNK_BYTES, position):
            position += len(chunk)
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                yield line + b"\n"
        if rest and _is_json(rest):
            yield rest + b"\n"

    # ------------------------------------------------------------------ replacing and closing

    def replace(self, other: SpoolFile) -> None:
        """Take over the content of another file, whose path no longer exists afterwards."""
        if platform_files.RENAMES_OPEN_FILES:
            os.rename(other.path, self.path)
            os.close(self._descriptor)
            self._descriptor = other._descriptor
        else:
            self._reopen_as(other)
        self.size = other.size
        self._position, self._head, self._written_head = 0, b"", other._written_head

    def _reopen_as(self, other: SpoolFile) -> None:
        """Replace on systems where both files must be closed; the lock is free for that moment."""
        other.close()
        os.close(self._descriptor)
        try:
            os.replace(other.path, self.path)
        finally:
            self._descriptor = os.open(self.path, os.O_RDWR | platform_files.BINARY)
            with suppress(OSError):
                platform_files.lock(self._descriptor)

    def remove(self) -> None:
        """Delete and close the file."""
        if not platform_files.RENAMES_OPEN_FILES:
            self.close()
        with suppress(OSError):
            self.path.unlink()
        self.close()

    def mark_refused(self) -> None:
        """Rename the file, so that it stays for inspection and is not sent again."""
        if not platform_files.RENAMES_OPEN_FILES:
            self.close()
        os.replace(self.path, self.path.with_suffix(".refused"))

    def sync(self) -> None:
        """Flush the file to the disk."""
        with suppress(OSError):
            os.fsync(self._descriptor)

    def close(self) -> None:
        """Close the file, which releases the lock."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


def is_run(line: bytes) -> bool:
    """Whether a line is a run record."""
    if _RUN.search(line) is None or not _is_json(line):
        return False
    record = json.loads(line)
    return isinstance(record, dict) and record.get("type") == "run"


def _is_json(text: bytes) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True
