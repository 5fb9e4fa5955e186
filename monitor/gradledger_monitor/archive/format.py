"""What is in an archive, version 3: zstd-compressed JSON lines.

The first line is the manifest. Then come the rows that the service itself wrote (what a judge
noted, what people said), then the run's records as the wire has them, each process's after its
run record; and last a line that tells how many there were, with their hash: an archive without it
was cut off. ``zstd -dc run.jsonl.zst`` shows it all.

Of runs whose first records were pruned, version 1 held the evaluation state, as a pickle, which is
not read; version 2 holds their findings and verdict. Version 3 has other names of tables and
columns: ``store/runs/earlier_names.py`` lists them.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

from gradledger_monitor.ingest import schema

__all__ = ["SUFFIX", "VERSION", "Close", "DamagedArchive", "Manifest", "Row", "decode"]

SUFFIX = ".jsonl.zst"
VERSION = 3


class DamagedArchive(ValueError):
    """A file that is no archive, or no whole one."""


class Manifest(Struct, kw_only=True, tag="archive"):
    """The first line."""

    version: int
    run: str
    name: str
    exported: float  # Unix seconds
    written_by: str


class Row(Struct, kw_only=True, tag="row"):
    """A row of the service's own: which table, and its columns but for the run's key."""

    table: str
    values: dict[str, Any]


class Close(Struct, kw_only=True, tag="close"):
    """The last line: of all before it, how many they are and their SHA-256."""

    lines: int
    sha256: str


Line = Manifest | Row | Close | schema.Record
_decoder: msgspec.json.Decoder[Line] = msgspec.json.Decoder(Line)


def decode(line: bytes) -> Line:
    """One line; raises ``DamagedArchive``."""
    try:
        return _decoder.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise DamagedArchive(f"a line of it makes no sense: {error}") from error
