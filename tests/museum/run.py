"""Judges the museum and prints what was found, as a table or as JSON.

    python -m museum.run [--only TEXT] [--jobs 2] [--in-part] [--json OUT]
                         [--write docs/detection.md]

Run from ``tests/``. The exit status is 1 when an incident is missed or a healthy script accused;
with ``--in-part`` the hooks watch two steps of every four, and may miss what happens but once.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue

from museum.judging import Verdict, judge
from museum.labels import Piece, collection
from museum.stage import Stage
from museum.tables import CHAPTER, as_json, document, summary


def verdict_on(stage: Stage, piece: Piece, watch: str = "records") -> Verdict:
    """Play one script with the hooks on, and judge what they recorded."""
    played = stage.play(piece.script, piece.ranks, watch)
    if played.failed:
        return Verdict(piece, {}, "failed", 0, played.printed.strip()[-2000:] or "killed")
    return judge(piece, played.seen)


def judged(pieces: list[Piece], jobs: int, watch: str) -> Iterator[Verdict]:
    """All verdicts in order, as they come."""
    stages: Queue[Stage] = Queue()

    def one(piece: Piece) -> Verdict:
        stage = stages.get()
        try:
            return verdict_on(stage, piece, watch)
        finally:
            stages.put(stage)

    for _ in range(jobs):
        stages.put(Stage())
    with ThreadPoolExecutor(jobs) as pool:
        yield from pool.map(one, pieces)
    while not stages.empty():
        stages.get().close()


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--only", default="", help="scripts whose family/name holds this")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--in-part", action="store_true", help="watch two steps of every four")
    parser.add_argument("--json", type=Path, help="write every verdict here")
    parser.add_argument("--write", type=Path, help="write the table as markdown here")
    asked = parser.parse_args()
    verdicts = []
    pieces = [piece for piece in collection() if asked.only in piece.name]
    for verdict in judged(pieces, asked.jobs, "in_part" if asked.in_part else "records"):
        verdicts.append(verdict)
        if not verdict.right:
            sys.stdout.write(_line(verdict))
    sys.stdout.write(summary(verdicts) + "\n")
    if asked.json:
        asked.json.write_text(json.dumps(as_json(verdicts), indent=1) + "\n")
    if asked.write:
        kept = (
            "".join(asked.write.read_text().partition(CHAPTER)[1:]) if asked.write.exists() else ""
        )
        asked.write.write_text(document(verdicts) + kept)
    right = [not v.noise and not v.problem if asked.in_part else v.right for v in verdicts]
    return 0 if all(right) else 1


def _line(verdict: Verdict) -> str:
    piece = verdict.piece
    said = ", ".join(f"{rule} at {step}" for rule, step in verdict.found.items()) or "nothing"
    wanted = piece.label.expected if piece.kind == "incident" else "nothing"
    problem = verdict.problem.rpartition("\n")[2]
    return f"{piece.kind} {piece.name}: expected {wanted}, found {said} {problem}\n"


if __name__ == "__main__":
    sys.exit(main())
