"""Writes one line to standard error: the only place in the hooks that does.

A message must never harm the program that it appears in. Standard error may be missing (a daemon,
``2>&-``), closed, a pipe that nobody reads or whose reader is gone, or an object of the program's
own that raises. In each of these cases the line is dropped.

Any Python that ``gradledger run`` reaches may load this file by its path, also one that is too old
for the hooks: keep its syntax plain, and its imports to the standard library.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# POSIX: a pipe that is ready takes this much without blocking, in one piece.
MAX_BYTES = 4096
# For a reader that is merely slow. Messages are few, so this is no delay worth a thread.
WAIT_MILLISECONDS = 50


def write_line(text: str) -> None:
    """Write ``gradledger: text``, cut at 4 kB; never raises, and waits 50 ms at most."""
    try:  # noqa: SIM105 (`suppress` takes stack, of which there may be none left)
        _write(sys.stderr, "gradledger: {}\n".format(" ".join(text.split())))
    except Exception:  # nosec B110
        pass


def _write(stream: Any, line: str) -> None:
    if stream is None:
        return
    descriptor = _descriptor(stream)
    if descriptor is not None and not _takes(descriptor):
        return
    encoding = getattr(stream, "encoding", None) or "utf-8"
    data = line.encode(encoding, "backslashreplace")
    if len(data) > MAX_BYTES:
        data = data[: MAX_BYTES - 4] + b"...\n"
    if descriptor is not None and stream is sys.__stderr__:
        # Not through the stream: what it cannot flush, it tries again when Python ends, and then
        # the exit status of the program becomes 120.
        os.write(descriptor, data)
    else:
        stream.write(data.decode(encoding, "replace"))


def _descriptor(stream: Any) -> int | None:
    """The file behind a stream; None where there is none, as in a notebook."""
    try:
        descriptor = stream.fileno()
    except Exception:  # nosec B110
        return None
    return descriptor if isinstance(descriptor, int) else None


def _takes(descriptor: int) -> bool:
    """Whether the file takes a line now: not a full pipe, nor one without a reader."""
    import select  # noqa: PLC0415 (only where there is something to write)

    os.fstat(descriptor)  # raises OSError for one that is closed
    if not hasattr(select, "poll"):  # Windows
        return True
    waiting = select.poll()
    waiting.register(descriptor, select.POLLOUT)
    events = [event for _, event in waiting.poll(WAIT_MILLISECONDS)]
    return bool(events) and not events[0] & (select.POLLERR | select.POLLHUP)
