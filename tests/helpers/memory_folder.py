"""Temporary files of tests in memory, where there is enough.

A test's databases and folders exist for a second, and a file system on a disk takes long to create
them: a copy of an empty Postgres database alone is hundreds of files.
"""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path

NEEDED = 8 * 2**30  # bytes that must be free: the tests themselves need memory, too


def use(mounted: Path = Path("/dev/shm")) -> None:
    """Put temporary files of this process and of those it starts there, unless TMPDIR is set."""
    if "TMPDIR" in os.environ:
        return
    with suppress(OSError):  # there is no such folder, or not for us
        if shutil.disk_usage(mounted).free < NEEDED or _without_programs(mounted):
            return
        folder = mounted / f"gradledger-tests-{os.getuid()}"
        folder.mkdir(mode=0o700, exist_ok=True)
        os.environ["TMPDIR"] = str(folder)


def _without_programs(folder: Path) -> bool:
    """Whether no program can be started from it, as in most containers."""
    return bool(os.statvfs(folder).f_flag & os.ST_NOEXEC)
