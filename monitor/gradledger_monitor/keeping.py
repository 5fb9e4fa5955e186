"""What is kept of a run judged so far, for another process to go on with (pure)."""

from __future__ import annotations

import io
import pickle
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import gradledger_monitor
from gradledger_monitor.engine import Memory
from gradledger_monitor.rules.choices import Choices


@dataclass
class Position:
    """How far a fold has come."""

    reached: dict[int, int] = field(default_factory=dict)  # last step by optimizer
    heard: dict[int, float] = field(default_factory=dict)  # when that step came
    late: dict[int, float] = field(default_factory=dict)  # how long after it ended
    silent_after: dict[int, int] = field(default_factory=dict)  # the last silence taken in
    resting: dict[int, Mapping[int, int]] = field(default_factory=dict)  # see ``Arrived.resting``
    steps: int = 0  # those that ranks let pass are counted
    tokens: int = 0  # of steps that were judged


def packed(at: Position, memory: Memory) -> bytes:
    """A position, and what the rules know there."""
    return zlib.compress(pickle.dumps((at, memory), protocol=5), 1)


def unpacked(kept: bytes) -> tuple[Position, Memory]:
    """What was packed. Raises ``UnpicklingError`` where that is something else."""
    at, memory = _Unpickler(io.BytesIO(zlib.decompress(kept))).load()
    if not isinstance(at, Position) or not isinstance(memory, Memory):
        raise pickle.UnpicklingError("not a kept fold")
    return at, memory


class _Unpickler(pickle.Unpickler):
    """Makes containers, and objects of the classes that judge; nothing that could do harm.

    After "Restricting Globals" in the documentation of pickle.
    """

    def find_class(self, module: str, name: str) -> Any:
        package, _, rest = module.partition(".")
        ours = package == gradledger_monitor.__name__ and rest.partition(".")[0] in _JUDGING
        if (module, name) != ("collections", "deque") and not ours:
            raise pickle.UnpicklingError(f"{module}.{name} is no part of a fold")
        found = super().find_class(module, name)
        if not isinstance(found, type) or found.__module__ != module:
            raise pickle.UnpicklingError(f"{module}.{name} is no class of that module")
        return found


_JUDGING = {"engine", "facts", "findings", "keeping", "line", "rules", "track", "wire"}


def stamp(choices: Choices) -> str:
    """Names this code and these choices: what others kept is of no use to it."""
    return sha256(_code() + repr(choices).encode()).hexdigest()


@lru_cache(maxsize=1)
def _code() -> bytes:
    folder = Path(gradledger_monitor.__file__).parent
    told = sha256()
    for path in sorted([*folder.glob("*.py"), *(folder / "rules").rglob("*.py")]):
        told.update(path.read_bytes())
    return told.digest()
