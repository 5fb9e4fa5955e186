"""Coverage-guided fuzzing of the record decoder with atheris: ``make fuzz``.

Where atheris has no wheel, ``tests/unit/test_hostile_batches.py`` tests the same with hypothesis.
"""

from __future__ import annotations

import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["gradledger_monitor"]):
    from gradledger_monitor.api.routes.ingest import EXAMPLE
    from gradledger_monitor.common.problems import Problem
    from gradledger_monitor.ingest.bounds import Bounds, LimitExceeded
    from gradledger_monitor.ingest.content_encoding import decompress
    from helpers.accounting import accounted

LARGEST = Bounds(size=2**20, lines=50_000, memory=2**28, seconds=60.0)


def one(data: bytes) -> None:
    """Decode any bytes as a body: plain, as gzip and as zstd."""
    accounted(data)
    for encoding in ("gzip", "zstd"):
        with suppress(Problem, LimitExceeded):  # the expected errors
            accounted(decompress(data, encoding, LARGEST))


def main() -> None:
    """Start from a valid batch."""
    with tempfile.TemporaryDirectory() as corpus:
        (Path(corpus) / "example").write_bytes(EXAMPLE.encode())
        atheris.Setup([*sys.argv, corpus], one)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
