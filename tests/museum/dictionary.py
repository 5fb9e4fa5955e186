"""Learns what step records have in common, for the store to compress them well.

    python -m museum.dictionary OUT

Run from ``tests/``. Plays every script of the museum with the hooks on. A dictionary that is in use
is never replaced, for what was stored with it needs it: see ``store/packing.py``.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import zstandard

from gradledger_monitor.ingest import schema
from museum.labels import collection
from museum.stage import Stage

NUMBER = 1
IDS = 40_000  # of private dictionaries; RFC 8878 leaves 32,768 to 2^31 - 1 to everybody
SIZE = 16_384  # bytes; twice that gains little
MOST = 40  # records of one rank of one script, or long ones would drown the others


def sent() -> Iterator[bytes]:
    """Step records of all scripts, as the store packs them."""
    stage = Stage()
    for piece in collection():
        for rank in stage.play(piece.script, piece.ranks).recorded:
            decoded = [schema.decoder.decode(line) for line in rank.splitlines()]
            steps = [record for record in decoded if isinstance(record, schema.StepRecord)]
            yield from map(msgspec.msgpack.encode, steps[:MOST])
    stage.close()


def main(out: Path) -> None:
    """Train, and write."""
    samples: list[bytes | bytearray | memoryview[int]] = list(sent())
    dictionary = zstandard.train_dictionary(SIZE, samples, dict_id=IDS + NUMBER, level=3)
    out.write_bytes(dictionary.as_bytes())
    sys.stdout.write(f"{len(samples)} records; {len(dictionary)} bytes\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
