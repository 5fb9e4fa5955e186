"""Writes messages to standard error, one line each: the only module of the hooks that does.

A message must not harm the program in which it appears. Standard error may be missing (a daemon,
``2>&-``), closed, a full pipe, a pipe without a reader, or an object of the program that raises.
In each of these cases the line is dropped.

Every Python that ``gradledger run`` reaches may load this file by its path, even a Python that is
too old for the hooks: use plain syntax, and import only the standard library.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# POSIX: a pipe that is ready accepts this much without blocking, in one piece.
MAX_BYTES = 4096
# For a slow reader. Messages are rare, so a wait this short does not justify a thread.
WAIT_MILLISECONDS = 50


def write_line(text: str) -> None:
    """Write ``gradledger: text``, truncated to 4 kB. Never raises; waits at most 50 ms."""
    try:  # noqa: SIM105 (`suppress` needs stack frames, and there may be none left)
        _write(sys.stderr, "gradledger: {}\n".format(" ".join(text.split())))
    except Exception:  # nosec B110
        pass


def write_block(lines: list[str]) -> None:
    """Write ``gradledger: `` and the lines, in one piece. Never raises; waits at most 50 ms."""
    try:  # noqa: SIM105 (as above)
        _write(sys.stderr, "gradledger: {}\n".format("\n  ".join(lines)))
    except Exception:  # nosec B110
        pass


def coloured(text: str, code: str, stream: Any = None) -> str:
    """The text with an ANSI colour, if a person reads it (on standard error) at a terminal."""
    try:
        plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
        colours = not plain and (stream or sys.stderr).isatty()
    except Exception:
        colours = False
    return f"\x1b[1;{code}m{text}\x1b[0m" if colours else text


class OncePerTopic:
    """Writes the first message about each topic, and drops later ones."""

    def __init__(self) -> None:
        self._topics: set[str] = set()

    def write(self, topic: str, text: str) -> None:
        """Write the message unless one about this topic was written before."""
        if topic not in self._topics:
            self._topics.add(topic)
            write_line(text)


def _write(stream: Any, line: str) -> None:
    if stream is None:
        return
    descriptor = _descriptor(stream)
    if descriptor is not None and not _is_writable(descriptor):
        return
    encoding = getattr(stream, "encoding", None) or "utf-8"
    data = line.encode(encoding, "backslashreplace")
    if len(data) > MAX_BYTES:
        data = data[: MAX_BYTES - 4] + b"...\n"
    if descriptor is not None and stream is sys.__stderr__:
        # Not through the stream: Python flushes it again at exit, and if that fails, the exit
        # status of the program becomes 120.
        os.write(descriptor, data)
    else:
        stream.write(data.decode(encoding, "replace"))


def _descriptor(stream: Any) -> int | None:
    """The file descriptor of a stream; None if it has none, as in a notebook."""
    try:
        descriptor = stream.fileno()
    except Exception:  # nosec B110
        return None
    return descriptor if isinstance(descriptor, int) else None


def _is_writable(descriptor: int) -> bool:
    """Whether a write would not block or fail: False for a full pipe or one without a reader."""
    import select  # noqa: PLC0415 (loaded only if there is a message)

    os.fstat(descriptor)  # raises OSError if it is closed
    if not hasattr(select, "poll"):  # Windows
        return True
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    events = [event for _, event in poll.poll(WAIT_MILLISECONDS)]
    return bool(events) and not events[0] & (select.POLLERR | select.POLLHUP)
