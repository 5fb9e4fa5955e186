"""A program ``python`` whose process is a fork: ``python -IS stand_in.py SERVER ARGUMENTS``.

It imports little, because commands under test start it often. See ``forkserver``.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys

TYPE_CHECKING = False  # without typing, whose import takes a quarter of the time
if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any


def start(server: Path | str, request: dict[str, Any], streams: list[int]) -> socket.socket:
    """Start a program; its process id and then its exit status are the lines of the answer."""
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(str(server))
    socket.send_fds(connection, [b"."], streams)
    connection.sendall(json.dumps(request).encode() + b"\n")
    return connection


def main(server: str, *arguments: str) -> int:
    """Run a program as a fork in place of this process; its exit status."""
    env = dict(os.environ)
    if arguments[0] == "-u":  # the option with which torchrun starts Python
        arguments, env["PYTHONUNBUFFERED"] = arguments[1:], "1"
    request = {"arguments": arguments, "env": env, "cwd": os.getcwd(), "teardown": False}
    with start(server, request, [1, 2]) as connection, connection.makefile("r") as answers:
        program = int(answers.readline())
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda number, _: os.kill(program, number))
        status = int(answers.readline())
    if status < 0:
        signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    return status


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
