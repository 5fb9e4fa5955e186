"""Findings with the lines of the script that their rules are about (pure)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from gradledger_monitor.evaluation.code_fixes import fix_in_code
from gradledger_monitor.model.code.locations import (
    CodeLocation,
    LocationsByOptimizer,
    locations_for,
)
from gradledger_monitor.model.code.statements import code_of
from gradledger_monitor.model.findings import Finding
from gradledger_monitor.rules.docs import rules_by_id

WITH_FIXES = (
    "",
    "accelerate",
    "lightning",
    "lightning_fabric",
    "pytorch_lightning",
    "transformers",
)
AUTOGRAD_GRAD = (
    "\n# This loop calls torch.autograd.grad: change the loss that it gets in the same way, or the "
    "sum\n# of its results."
)
_GRAD = re.compile(r"(?:\w+\.)*\bgrad\(")
FIRST_WINDOWS = 4  # whose calls are located: see the hooks' ``capture/code/call_sites.py``


def with_code(findings: Sequence[Finding], located: LocationsByOptimizer) -> list[Finding]:
    """The findings, each with the locations of the optimizer that it is about."""
    only = len(located) < 2
    return [_with_code(finding, located.get(_optimizer(finding), []), only) for finding in findings]


def _optimizer(finding: Finding) -> int:
    """The one whose lines show it: the evidence may state that another one is at fault."""
    stated = finding.evidence.get("optimizer")
    return stated if isinstance(stated, int) else finding.optimizer


def _with_code(finding: Finding, located: Sequence[CodeLocation], only: bool) -> Finding:
    rule = rules_by_id().get(finding.rule)
    if rule is None or not located:
        return finding
    # The hooks locate all calls of the first windows: a later one may be another one.
    late = finding.first_step > FIRST_WINDOWS
    roles = [role for role in rule.points_at if not (late and role in rule.single_calls)]
    code = tuple(
        replace(each, source=tuple(map(str.rstrip, each.source)))
        for each in locations_for(roles, located)
    )
    if rule.points_at_divisions:
        code = tuple(sorted(code, key=_divides, reverse=True))
    fix = fix_in_code(finding, located, only, late)
    if fix == finding.fix and finding.rule.startswith("reduction."):
        fix += _note_on_backward(fix, located)
    return replace(finding, code=code, fix=fix)


def _divides(location: CodeLocation) -> bool:
    """Whether there is a division in the lines of a statement or a call."""
    first = location.line - (location.first or location.line)
    last = first + (location.end_line or location.line) - location.line
    return any("/" in code_of(line) for line in location.source[first : last + 1])


def _note_on_backward(fix: str, located: Sequence[CodeLocation]) -> str:
    """A note below ``loss.backward()``, if the script has no such line; frameworks have fixes."""
    backwards = [call for call in located if call.role in ("backward", "scaled_backward")]
    code = [line.partition("#")[0] for line in fix.splitlines()]
    if not backwards or ".backward(" not in "".join(code):
        return ""
    callers = {call.via for call in backwards}
    if callers == {""} and all(map(_is_autograd_grad, backwards)):
        return AUTOGRAD_GRAD
    if len(callers) != 1 or not callers.isdisjoint(WITH_FIXES):
        return ""
    (library,) = callers
    return f"\n# {library} calls backward: change the loss that it gets, or its options."


def _is_autograd_grad(backward: CodeLocation) -> bool:
    """Whether it is a call of ``torch.autograd.grad``, as far as its first line shows."""
    index = backward.line - (backward.first or backward.line)
    line = backward.source[index] if index < len(backward.source) else ""
    if backward.column is None:  # the call may be anywhere in it
        return ".backward(" not in line and _GRAD.search(line) is not None
    return _GRAD.match(line, backward.column - 1) is not None
