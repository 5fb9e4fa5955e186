"""Saves what scripts of the museum send: ``python -m museum.record FOLDER [--each-rule]``.

Played once, they can be evaluated again and again without torch: tests of the rules' texts read the
incident of each rule (``--each-rule``, into ``tests/fixtures/records``), mutants meet all of them.
"""

from __future__ import annotations

import argparse
import gzip
from pathlib import Path

from museum.labels import collection, one_for_each_rule
from museum.stage import Stage

RUN = b'"type":"run"'


def recorded(folder: Path) -> dict[str, list[bytes]]:
    """The recordings in a folder: name of the script -> what each rank sent."""
    return {
        str(path.relative_to(folder)).removesuffix(".jsonl.gz"): _ranks(path)
        for path in sorted(folder.rglob("*.jsonl.gz"))
    }


def _ranks(path: Path) -> list[bytes]:
    """The lines of each rank, which begin with its run record."""
    ranks: list[list[bytes]] = []
    for line in gzip.decompress(path.read_bytes()).splitlines(keepends=True):
        if RUN in line:
            ranks.append([])
        ranks[-1].append(line)
    return [b"".join(lines) for lines in ranks]


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--each-rule", action="store_true", help="one incident of each rule only")
    options = parser.parse_args()
    pieces = collection()
    stage = Stage()
    for piece in one_for_each_rule(pieces) if options.each_rule else pieces:
        played = stage.play(piece.script, piece.ranks)
        assert not played.failed, f"{piece.name}: {played.printed}"
        path = options.folder / f"{piece.name}.jsonl.gz"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress(b"".join(played.recorded), mtime=0))
    stage.close()


if __name__ == "__main__":
    main()
