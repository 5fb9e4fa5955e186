"""Platform differences of spool files: locks, positioned reads, renaming open files.

POSIX has ``flock`` and positioned reads, and an open file can be renamed and deleted. Windows has
``msvcrt.locking`` and no positioned reads, and an open file can be neither renamed nor deleted.
"""

from __future__ import annotations

import importlib
import os
from typing import Any


def _module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


_fcntl, _msvcrt = _module("fcntl"), _module("msvcrt")

RENAMES_OPEN_FILES = _fcntl is not None
BINARY: int = getattr(os, "O_BINARY", 0)  # without it, Windows changes line ends
_LOCKED_BYTE = 2**31 - 2  # beyond all data, because others cannot read a locked range


def lock(descriptor: int) -> bool:
    """Lock an open file until it is closed or the process ends.

    Raises OSError if another process holds the lock. Returns False if the system has no locks.
    """
    if _fcntl is not None:
        _fcntl.flock(descriptor, _fcntl.LOCK_EX | _fcntl.LOCK_NB)
        return True
    if _msvcrt is not None:
        os.lseek(descriptor, _LOCKED_BYTE, os.SEEK_SET)
        _msvcrt.locking(descriptor, _msvcrt.LK_NBLCK, 1)
        return True
    return False


def read_at(descriptor: int, size: int, position: int) -> bytes:
    """Read up to ``size`` bytes from a position. Call it from one thread at a time."""
    if hasattr(os, "pread"):
        return os.pread(descriptor, size, position)
    os.lseek(descriptor, position, os.SEEK_SET)
    return os.read(descriptor, size)


def write_at(descriptor: int, data: memoryview, position: int) -> int:
    """Write at a position; returns the bytes written. Call it from one thread at a time."""
    if hasattr(os, "pwrite"):
        return os.pwrite(descriptor, data, position)
    os.lseek(descriptor, position, os.SEEK_SET)
    return os.write(descriptor, data)
