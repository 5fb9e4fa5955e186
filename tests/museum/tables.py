"""The museum's results as text, markdown and JSON (pure)."""

from __future__ import annotations

from typing import Any

from museum.evaluation import PieceResult
from museum.labels import WITHOUT_EXHIBIT

COMMAND = "make museum"
RANKS = "## Several ranks"
CHAPTER = "## Long runs"  # written by museum.courses.measure, and kept


def replace_chapter(document: str, chapter: str) -> str:
    """``document`` with ``chapter`` in place of the one with the same heading, or at the end."""
    heading = chapter.partition("\n")[0]
    before, _, rest = document.partition(f"{heading}\n")
    _, mark, after = rest.partition("\n## ")
    return f"{before.rstrip()}\n\n{chapter.rstrip()}\n" + (f"\n## {after}" if mark else "")


def _of(results: list[PieceResult], kind: str) -> list[PieceResult]:
    return [v for v in results if v.piece.kind == kind]


def figures(results: list[PieceResult]) -> dict[str, int]:
    """Counts: what was found, what was named correctly, and what was found wrongly."""
    incidents = _of(results, "incident")
    return {
        "incidents": len(incidents),
        "public": sum(v.piece.label.is_public for v in incidents),
        "detected": sum(v.detected for v in incidents),
        "named": sum(v.named for v in incidents),
        "exact": sum(v.exact for v in incidents),
        "by_second_step": sum((v.first_step or 99) <= 2 for v in incidents),
        "noisy": sum(bool(v.wrong_findings) for v in incidents),
        "twins": len(_of(results, "twin")),
        "twins_alarmed": sum(v.detected for v in _of(results, "twin")),
        "lookalikes": len(_of(results, "look-alike")),
        "lookalikes_alarmed": sum(v.detected for v in _of(results, "look-alike")),
        "failed": sum(bool(v.problem) for v in results),
    }


def summary(results: list[PieceResult]) -> str:
    """One line for a terminal."""
    f = figures(results)
    return (
        f"{f['incidents']} incidents: {f['detected']} found, {f['named']} named correctly "
        f"({f['exact']} by exactly one finding), {f['noisy']} with a wrong one as well; "
        f"false alarms: {f['twins_alarmed']} of {f['twins']} twins, "
        f"{f['lookalikes_alarmed']} of {f['lookalikes']} look-alikes; {f['failed']} not evaluated"
    )


def as_json(results: list[PieceResult]) -> dict[str, Any]:
    """Figures and one row for each script."""
    return {"figures": figures(results), "scripts": [_row(v) for v in results]}


def _row(result: PieceResult) -> dict[str, Any]:
    piece = result.piece
    return {
        "script": piece.name,
        "kind": piece.kind,
        "source": piece.label.source,
        "expected": sorted(piece.expected),
        "found": result.findings,
        "noise": result.wrong_findings,
        "first_step": result.first_step,
        "steps": result.steps,
        "verdict": result.verdict,
        "problem": result.problem,
    }


def document(results: list[PieceResult]) -> str:
    """docs/detection.md."""
    incidents, alikes = _of(results, "incident"), _of(results, "look-alike")
    return "\n".join(
        [
            "# What is found, and what is left alone",
            "",
            f"Written by `{COMMAND}`; do not edit. The scripts are in `tests/museum`: an incident",
            "re-creates a mistake of a public repository, its twin is the same script put right,",
            "a look-alike is healthy and only looks suspicious. None of them knows gradledger.",
            "",
            *_totals(figures(results)),
            "",
            "## Incidents",
            "",
            "| script | public incident | expected | found, at step | twin |",
            "|---|---|---|---|---|",
            *[_incident(v, results) for v in incidents],
            "",
            "Not named yet:" if _missed(results) else "All are named.",
            "",
            *_missed(results),
            "",
            "Rules without a script:",
            "",
            *[f"- `{rule}`: {why}" for rule, why in WITHOUT_EXHIBIT.items()],
            "",
            "## Look-alikes",
            "",
            "| script | like | why it is healthy | found | verdict |",
            "|---|---|---|---|---|",
            *[_lookalike(v) for v in alikes],
            "",
            ranks_chapter(results),
        ]
    )


def ranks_chapter(results: list[PieceResult]) -> str:
    """The chapter on the scripts of several ranks."""
    several = [v for v in results if v.piece.ranks > 1]
    incidents, healthy = _of(several, "incident"), _of(several, "twin")
    healthy += _of(several, "look-alike")
    alarmed = sum(v.detected for v in healthy)
    return "\n".join(
        [
            RANKS,
            "",
            "Of the scripts above, those that run on several ranks (gloo, CPU): `make parallel`.",
            "That each incident is wrong and its twin is right is proved without the hooks, mostly",
            "by comparing the applied gradient with that of one large batch.",
            "",
            f"Named: {sum(v.named for v in incidents)} of {len(incidents)} incidents. "
            f"False alarms: {alarmed} of {len(healthy)} healthy scripts.",
            "",
            "| script | ranks | what it does | expected | found | verdict |",
            "|---|---|---|---|---|---|",
            *[_of_ranks(v) for v in several],
            "",
        ]
    )


def _of_ranks(result: PieceResult) -> str:
    piece = result.piece
    why = "the same, put right" if piece.kind == "twin" else piece.label.why
    expected = piece.label.expected if piece.kind == "incident" else "nothing"
    cells = [piece.name, str(piece.ranks), why, expected, _findings(result), result.verdict]
    return f"| {' | '.join(cells)} |"


def _totals(f: dict[str, int]) -> list[str]:
    return [
        "| | |",
        "|---|---|",
        f"| incidents found | {f['detected']} of {f['incidents']} |",
        f"| named correctly | {f['named']} of {f['incidents']} |",
        f"| named correctly, and nothing else found | {f['exact']} of {f['incidents']} |",
        f"| re-create one public report | {f['public']} of {f['incidents']} |",
        f"| named by the second optimizer step | {f['by_second_step']} of {f['incidents']} |",
        f"| a wrong finding beside the right one | {f['noisy']} of {f['incidents']} |",
        f"| false alarms on twins | {f['twins_alarmed']} of {f['twins']} |",
        f"| false alarms on look-alikes | {f['lookalikes_alarmed']} of {f['lookalikes']} |",
    ]


def _incident(result: PieceResult, results: list[PieceResult]) -> str:
    piece = result.piece
    twin = next((v for v in results if v.piece.name == f"{piece.name}_fixed"), None)
    of_twin = _findings(twin) if twin else "not run"
    cells = [piece.name, piece.label.source, piece.label.expected, _findings(result), of_twin]
    return f"| {' | '.join(cells)} |"


def _lookalike(result: PieceResult) -> str:
    label = result.piece.label
    cells = [result.piece.name, label.source, label.why, _findings(result), result.verdict]
    return f"| {' | '.join(cells)} |"


def _missed(results: list[PieceResult]) -> list[str]:
    missed = [v for v in _of(results, "incident") if not v.correct]
    return [f"- {v.piece.name}" for v in missed]


def _findings(result: PieceResult) -> str:
    if result.problem:
        return "not evaluated"
    return ", ".join(f"{rule} at {step}" for rule, step in result.findings.items()) or "nothing"
