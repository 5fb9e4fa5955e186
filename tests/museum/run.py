"""Judges the museum and prints what was found, as a table or as JSON.

    python -m museum.run [--only TEXT] [--core] [--parallel | --one-rank] [--jobs 2]
                         [--in-part N] [--json OUT] [--write docs/detection.md]

Run from ``tests/``. The exit status is 1 when an incident is missed or a healthy script accused.
With ``--in-part N``, every Nth script is played with hooks that watch two steps of every four:
they may miss an incident that happens once, which is then no error.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path

from museum.evaluation import PieceResult, evaluate
from museum.labels import Piece, collection, core
from museum.stage import Stage, on_stages
from museum.tables import (
    CHAPTER,
    RANKS,
    as_json,
    document,
    ranks_chapter,
    replace_chapter,
    summary,
)


def result_of(stage: Stage, piece: Piece, watch: str = "records") -> PieceResult:
    """Play one script with the hooks on, and evaluate what they recorded."""
    played = stage.play(piece.script, piece.ranks, watch)
    if played.failed:
        return PieceResult(piece, {}, "failed", 0, played.printed.strip()[-2000:] or "killed")
    return evaluate(piece, played.recorded)


def _written(before: str, results: list[PieceResult], parallel: bool) -> str:
    """The document with these results: its chapter on ranks alone, or all but the long runs."""
    if not parallel:
        return document(results) + "".join(before.partition(CHAPTER)[1:])
    chapter = ranks_chapter(results)
    if RANKS in before:
        return replace_chapter(before, chapter)
    rest, mark, long_runs = before.partition(CHAPTER)
    return f"{rest.rstrip()}\n\n{chapter}\n{mark}{long_runs}"


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--only", default="", help="scripts whose family/name holds this")
    parser.add_argument("--core", action="store_true", help="one incident of each rule, its twin")
    ranks = parser.add_mutually_exclusive_group()
    ranks.add_argument("--parallel", action="store_true", help="scripts of several ranks")
    ranks.add_argument("--one-rank", action="store_true", help="scripts of one rank")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument(
        "--in-part", type=int, help="every Nth, watching two steps of every four", metavar="N"
    )
    parser.add_argument("--json", type=Path, help="write every result here")
    parser.add_argument("--write", type=Path, help="write the table as markdown here")
    options = parser.parse_args()
    if options.in_part and options.write:
        parser.error("--write needs all scripts and all steps: leave out --in-part")
    pieces = [piece for piece in collection() if options.only in piece.name]
    if options.parallel:
        pieces = [piece for piece in pieces if piece.ranks > 1]
    if options.one_rank:
        pieces = [piece for piece in pieces if piece.ranks == 1]
    if options.core:
        pieces = core(pieces)
    watch = "in_part" if options.in_part else "records"
    pieces = pieces[:: options.in_part or 1]
    results = _printed(
        on_stages(lambda stage, one: result_of(stage, one, watch), pieces, options.jobs)
    )
    if options.json:
        options.json.write_text(json.dumps(as_json(results), indent=1) + "\n")
    if options.write:
        written = options.write.read_text() if options.write.exists() else ""
        options.write.write_text(_written(written, results, options.parallel))
    if options.in_part:
        return int(any(result.wrong_findings or result.problem for result in results))
    return int(not all(result.correct for result in results))


def _printed(results: Iterator[PieceResult]) -> list[PieceResult]:
    """All results; prints the incorrect ones as they come, and a summary."""
    every = []
    for result in results:
        every.append(result)
        if not result.correct:
            sys.stdout.write(_line(result))
    sys.stdout.write(summary(every) + "\n")
    return every


def _line(result: PieceResult) -> str:
    piece = result.piece
    findings = ", ".join(f"{rule} at {step}" for rule, step in result.findings.items()) or "nothing"
    wanted = piece.label.expected if piece.kind == "incident" else "nothing"
    problem = result.problem.rpartition("\n")[2]
    return f"{piece.kind} {piece.name}: expected {wanted}, found {findings} {problem}\n"


if __name__ == "__main__":
    sys.exit(main())
