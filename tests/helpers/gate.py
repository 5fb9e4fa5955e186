"""A gate at which a program waits until the test opens it: a named pipe, read line by line."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path


@dataclass
class Gate:
    """The program waits while it reads a line from ``path``."""

    path: Path
    _pipe: int

    def open(self) -> None:
        """Let the program pass once."""
        os.write(self._pipe, b"\n")


@contextmanager
def new_gate(path: Path) -> Iterator[Gate]:
    """A closed gate at a new path."""
    os.mkfifo(path)
    pipe = os.open(path, os.O_RDWR)  # not only to write, which would wait for the program
    yield Gate(path, pipe)
    os.close(pipe)
