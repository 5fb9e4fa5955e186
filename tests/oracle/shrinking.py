"""Finds the simplest program that still gets a wrong answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from oracle.combinations import violations
from oracle.outcome import Outcome
from oracle.program import DIMENSIONS, Program


def shrunk(failing: Outcome, run: Callable[[Program], Outcome]) -> Outcome:
    """Replace choices by the first of their dimension while the kind of the outcome stays."""
    smallest, again = failing, True
    while again:
        again = False
        for dimension, choices in DIMENSIONS.items():
            simplest = next(iter(choices))
            if smallest.program.choices[dimension] == simplest:
                continue
            candidate = replace(smallest.program, **{dimension: simplest})  # type: ignore[arg-type]
            if violations(candidate):
                continue
            result = run(candidate)
            if result.kind == failing.kind and _same_rules(result, failing):
                smallest, again = result, True
    return smallest


def _same_rules(a: Outcome, b: Outcome) -> bool:
    """Whether both show the same fault: the same findings, or the same that is missing."""
    return a.findings == b.findings
