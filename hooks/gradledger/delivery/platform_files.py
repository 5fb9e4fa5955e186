"""What spool files need of the system, where systems differ: locks, positions, open files.

POSIX has ``flock``, positioned reads, and lets an open file be renamed and deleted. Windows has
``msvcrt.locking``, no positioned reads, and lets nobody rename or delete a file that is open.
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
BINARY: int = getattr(os, "O_BINARY", 0)  # or Windows writes other line ends
_LOCKED_BYTE = 2**31 - 2  # beyond all data: what is locked there, others cannot read


def lock(descriptor: int) -> bool:
    """Take the lock on an open file, which ends with the process at the latest.

    Raises OSError where another process has it; False where this system has no such locks.
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
    """Up to ``size`` bytes from a position; one thread at a time."""
    if hasattr(os, "pread"):
        return os.pread(descriptor, size, position)
    os.lseek(descriptor, position, os.SEEK_SET)
    return os.read(descriptor, size)


def write_at(descriptor: int, data: memoryview, position: int) -> int:
    """Write at a position; returns how many bytes were taken. One thread at a time."""
    if hasattr(os, "pwrite"):
        return os.pwrite(descriptor, data, position)
    os.lseek(descriptor, position, os.SEEK_SET)
    return os.write(descriptor, data)
