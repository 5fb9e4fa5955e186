"""The outcomes of generated programs as a chapter of docs/detection.md (pure)."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence

from oracle.outcome import Kind, Outcome
from oracle.program import DIMENSIONS

HEADING = "## Generated programs"
COLUMNS: tuple[Kind, ...] = ("right", "missed", "accused", "untrue", "not_measured", "either")
Z = 1.96  # of a 95% interval


def wilson(count: int, total: int) -> tuple[float, float]:
    """The Wilson score interval of a share (Wilson 1927), at 95%."""
    if not total:
        return 0.0, 1.0
    share = count / total
    centre = (share + Z**2 / (2 * total)) / (1 + Z**2 / total)
    half = Z * math.sqrt(share * (1 - share) / total + Z**2 / (4 * total**2)) / (1 + Z**2 / total)
    return max(0.0, centre - half), min(1.0, centre + half)


def chapter(outcomes: Sequence[Outcome], command: str, label: str, before: str) -> str:
    """The chapter. ``before`` is the document so far, whose history is continued."""
    decided = [each for each in outcomes if each.kind != "either"]
    right = sum(each.kind == "right" for each in decided)
    low, high = wilson(right, len(decided))
    lines = [
        HEADING,
        "",
        f"Written by `{command}`.",
        f"{len(outcomes)} programs, each a random choice along the dimensions below",
        "(`tests/oracle/program.py`). The weights that the tokens of each objective really got are",
        "computed from the gradient that the optimizer applied, in float64 and without gradledger",
        "(`tests/oracle/truth.py`); the right answer follows from them by one table",
        "(`tests/oracle/expectation.py`). A mistake in the order of calls is known by",
        "construction; synchronisations are counted by PyTorch's flight recorder",
        "(`tests/oracle/collectives.py`). Of two mistakes, one must be named.",
        "",
        f"Right answers: **{right} of {len(decided)}**, {low:.1%} to {high:.1%} (95% Wilson",
        "interval).",
        "",
        "- *missed*: the program is wrong, and no rule names it.",
        "- *accused*: a finding at warning or above that is not true of the program.",
        "- *untrue*: the balance or misallocation of a step differs from the truth.",
        "- *not measured*: the rule that should fire reports `not_measured`, or the verdict of a",
        "  right program is `incomplete`.",
        "- *either*: what was intended cannot be known; any answer is right.",
        "",
        *_matrix(outcomes),
        "",
        *_reasons(outcomes),
        "### History",
        "",
        *_history(outcomes, label, before),
    ]
    return "\n".join(lines) + "\n"


def _matrix(outcomes: Sequence[Outcome]) -> Iterable[str]:
    titles = [kind.replace("_", " ") for kind in COLUMNS]
    yield f"| choice | {' | '.join(titles)} | right, 95% interval |"
    yield "|---" * (len(COLUMNS) + 2) + "|"
    for dimension, choices in DIMENSIONS.items():
        for choice in choices:
            of_choice = [o for o in outcomes if o.program.choices[dimension] == choice]
            if not of_choice:
                continue
            counts = Counter(o.kind for o in of_choice)
            cells = " | ".join(str(counts[kind]) for kind in COLUMNS)
            low, high = wilson(counts["right"], len(of_choice) - counts["either"])
            yield f"| {dimension}: {choice} | {cells} | {low:.0%} to {high:.0%} |"


def _reasons(outcomes: Sequence[Outcome]) -> Iterable[str]:
    reasons = Counter(
        re.sub(r" \[.*", "", o.why) for o in outcomes if o.kind == "not_measured"
    ).most_common(10)
    if reasons:
        yield "| not measured, because | programs |"
        yield "|---|---|"
        yield from (f"| {reason} | {count} |" for reason, count in reasons)
        yield ""


def _history(outcomes: Sequence[Outcome], label: str, before: str) -> Iterable[str]:
    counts = Counter(o.kind for o in outcomes)
    titles = " | ".join(kind.replace("_", " ") for kind in COLUMNS)
    yield f"| state | programs | {titles} |"
    yield "|---" * (len(COLUMNS) + 2) + "|"
    section = before.partition(HEADING)[2].partition("### History")[2].partition("\n## ")[0]
    yield from [line for line in section.splitlines() if line.startswith("| ")][1:]
    yield f"| {label} | {len(outcomes)} | {' | '.join(str(counts[kind]) for kind in COLUMNS)} |"
