"""The museum's verdicts as text, markdown and JSON (pure)."""

from __future__ import annotations

from typing import Any

from museum.judging import Verdict
from museum.labels import WITHOUT_EXHIBIT

COMMAND = "make museum"
CHAPTER = "## Long runs"  # written by museum.courses.measure, and kept


def _of(verdicts: list[Verdict], kind: str) -> list[Verdict]:
    return [v for v in verdicts if v.piece.kind == kind]


def figures(verdicts: list[Verdict]) -> dict[str, int]:
    """Counts: what was found, what was rightly named, and what was wrongly said."""
    incidents = _of(verdicts, "incident")
    return {
        "incidents": len(incidents),
        "detected": sum(v.detected for v in incidents),
        "named": sum(v.named for v in incidents),
        "exact": sum(v.exact for v in incidents),
        "by_second_step": sum((v.first_step or 99) <= 2 for v in incidents),
        "noisy": sum(bool(v.noise) for v in incidents),
        "twins": len(_of(verdicts, "twin")),
        "twins_alarmed": sum(v.detected for v in _of(verdicts, "twin")),
        "lookalikes": len(_of(verdicts, "look-alike")),
        "lookalikes_alarmed": sum(v.detected for v in _of(verdicts, "look-alike")),
        "failed": sum(bool(v.problem) for v in verdicts),
    }


def summary(verdicts: list[Verdict]) -> str:
    """One line for a terminal."""
    f = figures(verdicts)
    return (
        f"{f['incidents']} incidents: {f['detected']} found, {f['named']} rightly named "
        f"({f['exact']} by exactly one finding), {f['noisy']} with a wrong one beside; "
        f"false alarms: {f['twins_alarmed']} of {f['twins']} twins, "
        f"{f['lookalikes_alarmed']} of {f['lookalikes']} look-alikes; {f['failed']} not judged"
    )


def as_json(verdicts: list[Verdict]) -> dict[str, Any]:
    """Figures and one row for each script."""
    return {"figures": figures(verdicts), "scripts": [_row(v) for v in verdicts]}


def _row(verdict: Verdict) -> dict[str, Any]:
    piece = verdict.piece
    return {
        "script": piece.name,
        "kind": piece.kind,
        "source": piece.label.source,
        "expected": sorted(piece.expected),
        "found": verdict.found,
        "noise": verdict.noise,
        "first_step": verdict.first_step,
        "steps": verdict.steps,
        "verdict": verdict.verdict,
        "problem": verdict.problem,
    }


def document(verdicts: list[Verdict]) -> str:
    """docs/detection.md."""
    incidents, alikes = _of(verdicts, "incident"), _of(verdicts, "look-alike")
    return "\n".join(
        [
            "# What is found, and what is left alone",
            "",
            f"Written by `{COMMAND}`; do not edit. The scripts are in `tests/museum`: an incident",
            "re-creates a mistake of a public repository, its twin is the same script put right,",
            "a look-alike is healthy and only looks suspicious. None of them knows gradledger.",
            "",
            *_totals(figures(verdicts)),
            "",
            "## Incidents",
            "",
            "| script | public incident | expected | found, at step | twin |",
            "|---|---|---|---|---|",
            *[_incident(v, verdicts) for v in incidents],
            "",
            "Not named yet:" if _missed(verdicts) else "All are named.",
            "",
            *_missed(verdicts),
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
        ]
    )


def _totals(f: dict[str, int]) -> list[str]:
    return [
        "| | |",
        "|---|---|",
        f"| incidents found | {f['detected']} of {f['incidents']} |",
        f"| rightly named | {f['named']} of {f['incidents']} |",
        f"| rightly named, and nothing else said | {f['exact']} of {f['incidents']} |",
        f"| named by the second optimizer step | {f['by_second_step']} of {f['incidents']} |",
        f"| a wrong finding beside the right one | {f['noisy']} of {f['incidents']} |",
        f"| false alarms on twins | {f['twins_alarmed']} of {f['twins']} |",
        f"| false alarms on look-alikes | {f['lookalikes_alarmed']} of {f['lookalikes']} |",
    ]


def _incident(verdict: Verdict, verdicts: list[Verdict]) -> str:
    piece = verdict.piece
    twin = next((v for v in verdicts if v.piece.name == f"{piece.name}_fixed"), None)
    said = _found(twin) if twin else "not run"
    cells = [piece.name, piece.label.source, piece.label.expected, _found(verdict), said]
    return f"| {' | '.join(cells)} |"


def _lookalike(verdict: Verdict) -> str:
    label = verdict.piece.label
    cells = [verdict.piece.name, label.source, label.why, _found(verdict), verdict.verdict]
    return f"| {' | '.join(cells)} |"


def _missed(verdicts: list[Verdict]) -> list[str]:
    known = [v for v in _of(verdicts, "incident") if not v.right]
    return [f"- {v.piece.name}" for v in known]


def _found(verdict: Verdict) -> str:
    if verdict.problem:
        return "not judged"
    return ", ".join(f"{rule} at {step}" for rule, step in verdict.found.items()) or "nothing"
