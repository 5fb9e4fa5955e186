"""Fixes written against the script's own line, where its pattern is recognised (pure).

Only for fixes that ``tests/museum/fixes`` proves: it applies the change to the source of programs,
and the verdict becomes balanced. Every other finding shows the generic fix of its rule.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable
from typing import Any

from gradledger_monitor.model.code.locations import CodeLocation
from gradledger_monitor.model.findings import Finding
from gradledger_monitor.rules.reduction import fixes

REMOVED = "***"  # in place of a secret


def fix_in_code(finding: Finding, located: Iterable[CodeLocation]) -> str:
    """The change of the only backward, as a unified diff; the generic fix if it is not recognised.

    ``located`` are the calls of the optimizer that the finding is about.
    """
    change = _CHANGES.get(finding.fix)
    backwards = [each for each in located if each.role in ("backward", "scaled_backward")]
    if change is None or len(backwards) != 1:
        return finding.fix
    location = backwards[0]
    line = _source_line(location)
    call = None if line is None else _backward(line)
    changed = None if line is None or call is None else change(line.strip(), call, finding.evidence)
    if line is None or changed is None:
        return finding.fix
    indent = line[: len(line) - len(line.lstrip())]
    return (
        f"--- a/{location.file}\n+++ b/{location.file}\n@@ -{location.line} +{location.line} @@\n"
        f"-{line}\n+{indent}{changed}"
    )


def _source_line(location: CodeLocation) -> str | None:
    """The whole line of a call that the script itself makes on one line."""
    index = location.line - (location.first or location.line)
    if location.via or location.end_line != location.line or index >= len(location.source):
        return None
    line = location.source[index]
    return None if REMOVED in line else line


def _backward(line: str) -> ast.expr | None:
    """What ``.backward()`` is called on, if the line is nothing but that call."""
    try:
        (statement,) = ast.parse(line.strip()).body
    except (SyntaxError, ValueError):
        return None
    call = statement.value if isinstance(statement, ast.Expr) else None
    if not isinstance(call, ast.Call) or call.args or call.keywords:
        return None
    function = call.func
    is_backward = isinstance(function, ast.Attribute) and function.attr == "backward"
    return function.value if is_backward and isinstance(function, ast.Attribute) else None


def _divided(line: str, loss: ast.expr, evidence: dict[str, Any]) -> str | None:
    """``loss.backward()`` becomes ``(loss / 4).backward()``."""
    micro_batches = evidence.get("micro_batches")
    if not isinstance(loss, ast.Name) or not isinstance(micro_batches, int):
        return None
    end = loss.end_col_offset or 0
    return f"({loss.id} / {micro_batches}){line[end:]}"


def _undivided(line: str, loss: ast.expr, evidence: dict[str, Any]) -> str | None:
    """``(loss / K).backward()`` becomes ``loss.backward()``."""
    if not isinstance(loss, ast.BinOp) or not isinstance(loss.op, ast.Div):
        return None
    if not isinstance(loss.left, ast.Name):
        return None
    return f"{loss.left.id}{line[line.rindex('.backward') :]}"


_CHANGES: dict[str, Callable[[str, ast.expr, dict[str, Any]], str | None]] = {
    fixes.MICRO_BATCH_MEAN["plain"]: _divided,
    fixes.ONE_DIVISION["plain"]: _undivided,
}
