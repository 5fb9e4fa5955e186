"""One append-only file of JSON lines that wait for the service, and who may touch it.

Its first line is the run record, repeated where it changes, so that the file can be read alone.
The process that has it open holds the kernel's lock on it, which ends with the process
however that ends: a file that can be locked has no owner any more. It is deleted only by the holder
of that lock, and only after the service acknowledged all of it.

Written without fsync: a killed process loses nothing that was written, a machine that loses its
power what its kernel had not yet brought to the disk. There is one fsync, when a process ends.
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
    """An open, locked file, and how far it has been acknowledged."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self.thinned = False
        self.records = 0  # of those that this process wrote, how many wait
        self.size = os.fstat(descriptor).st_size
        self._descriptor = descriptor
        self._at = 0  # the first line that is not acknowledged
        self._head = b""  # the run record in force there
        self._written_head = b""

    @classmethod
    def create(cls, path: Path) -> SpoolFile:
        """A new file; FileExistsError if there is one. It is locked before others can see it."""
        if path.exists():
            raise FileExistsError(path)
        # Where an open file cannot be renamed, others cannot delete it either: no name is needed
        # under which they do not look.
        unseen = path.with_suffix(".new") if platform_files.RENAMES_OPEN_FILES else path
        new = os.O_TRUNC if unseen != path else os.O_EXCL
        descriptor = os.open(unseen, os.O_RDWR | os.O_CREAT | new | platform_files.BINARY, 0o600)
        with suppress(OSError):  # where nothing can be locked, nobody else takes it either
            platform_files.lock(descriptor)
        if unseen != path:
            os.rename(unseen, path)
        return cls(path, descriptor)

    @classmethod
    def take(cls, path: Path) -> SpoolFile | None:
        """An existing file that nobody else has; None if somebody has, or it is gone."""
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
        """An existing file, whoever has it: to be read, and neither written nor removed."""
        try:
            # some file systems lock no others
            return cls(path, os.open(path, os.O_RDWR | platform_files.BINARY))
        except (PermissionError, IsADirectoryError):
            return cls(path, os.open(path, os.O_RDONLY | platform_files.BINARY))

    # ------------------------------------------------------------------ writing

    def append(self, head: bytes, lines: list[bytes]) -> None:
        """Write all lines or none; OSError where the disk does not take them."""
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
        left, at = memoryview(data), self.size
        while left:
            written = platform_files.write_at(self._descriptor, left, at)
            left, at = left[written:], at + written

    # ------------------------------------------------------------------ reading, from where it is

    def peek(self, most_lines: int, most_bytes: int) -> list[bytes]:
        """A run record and the records that follow; empty when nothing is left."""
        batch, size, count = [self._head] if self._head else [], 0, 0
        for line in self._lines():
            size, run = size + len(line), is_run(line)
            if not run and (count == most_lines or (count and size > most_bytes)):
                break
            batch.append(line)
            count += not run
        return batch if count else []

    def advance(self, records: int) -> None:
        """So many records are acknowledged."""
        for line in self._lines():
            if is_run(line):
                self._head = line
            elif records == 0:
                break
            else:
                records -= 1
                self.records -= 1
            self._at += len(line)

    def _lines(self) -> Iterator[bytes]:
        """Whole lines. The torn last one of a process that died while it wrote it is none."""
        at, rest = self._at, b""
        while chunk := platform_files.read_at(self._descriptor, CHUNK_BYTES, at):
            at += len(chunk)
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                yield line + b"\n"
        if rest and _is_json(rest):
            yield rest + b"\n"

    # ------------------------------------------------------------------ its end

    def replace(self, other: SpoolFile) -> None:
        """Become the content of another file, which ceases to be a file of its own."""
        if platform_files.RENAMES_OPEN_FILES:
            os.rename(other.path, self.path)
            os.close(self._descriptor)
            self._descriptor = other._descriptor
        else:
            self._reopen_as(other)
        self.size = other.size
        self._at, self._head, self._written_head = 0, b"", other._written_head

    def _reopen_as(self, other: SpoolFile) -> None:
        """The same where both must be closed for it; for that moment, nobody has the lock."""
        other.close()
        os.close(self._descriptor)
        try:
            os.replace(other.path, self.path)
        finally:
            self._descriptor = os.open(self.path, os.O_RDWR | platform_files.BINARY)
            with suppress(OSError):
                platform_files.lock(self._descriptor)

    def remove(self) -> None:
        """Delete it and let go of it."""
        if not platform_files.RENAMES_OPEN_FILES:
            self.close()
        with suppress(OSError):
            self.path.unlink()
        self.close()

    def set_aside(self) -> None:
        """Keep it for a person to look at, under a name that nobody sends again."""
        if not platform_files.RENAMES_OPEN_FILES:
            self.close()
        os.replace(self.path, self.path.with_suffix(".refused"))

    def sync(self) -> None:
        """Bring it to the disk."""
        with suppress(OSError):
            os.fsync(self._descriptor)

    def close(self) -> None:
        """Let go of it, for another process to take."""
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
