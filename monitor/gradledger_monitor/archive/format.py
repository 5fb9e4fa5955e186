"""What is in an archive, version 3: zstd-compressed JSON lines.

The first line is the manifest. Rows that the service wrote itself follow (observations of the
evaluator, acknowledgements and tags of people), then the run's records in the wire format, those of
each process after its run record. The last line has the number of lines and their hash: an archive
without it is truncated. ``zstd -dc run.jsonl.zst`` prints everything.

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
    """A file that is not an archive, or a damaged one."""


class Manifest(Struct, kw_only=True, tag="archive"):
    """The first line."""

    version: int
    run: str
    name: str
    exported: float  # Unix seconds
    written_by: str


class Row(Struct, kw_only=True, tag="row"):
    """A row that the service wrote: its table, and its columns except the run's key."""

    table: str
    values: dict[str, Any]


class Close(Struct, kw_only=True, tag="close"):
    """The last line: the number of lines before it, and their SHA-256."""

    lines: int
    sha256: str


Line = Manifest | Row | Close | schema.Record
_decoder: msgspec.json.Decoder[Line] = msgspec.json.Decoder(Line)


def decode(line: bytes) -> Line:
    """One line; raises ``DamagedArchive``."""
    try:
        return _decoder.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise DamagedArchive(f"a line cannot be decoded: {error}") from error
