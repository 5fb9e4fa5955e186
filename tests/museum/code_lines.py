"""Where the finding of an incident must point: at a call in the script's own file.

The calls are found in the source, without the hooks. If several fit the role, the label's ``line``
is the text of the right one.
"""

from __future__ import annotations

import ast
from pathlib import Path

from gradledger_monitor.model.code.locations import CodeLocation
from museum.labels import Piece

# The names of the functions that a script calls in a role.
CALLS = {
    "backward": {"backward"},
    "scaled_backward": {"backward"},
    "idle_backward": {"backward"},
    "step": {"step"},
    "zero_grad": {"zero_grad"},
    "clip_norm": {"clip_grad_norm_"},
    "clip_value": {"clip_grad_value_"},
    "unscale": {"unscale_"},
    "scaler_step": {"step"},
    "update": {"update"},
    "schedule": {"step"},
    "new_schedule": {"CosineAnnealingLR", "LambdaLR", "LinearLR", "OneCycleLR", "SequentialLR"},
}


def wrong_location(piece: Piece, code: tuple[CodeLocation, ...]) -> str:
    """What is wrong about the first location of a finding; empty if nothing is."""
    if not code:
        return "no location"
    first = code[0]
    if Path(first.file).name != piece.script.name:
        return f"{first.file} is not the script"
    source = piece.script.read_text()
    text = source.splitlines()[first.line - 1].strip()
    if piece.label.line:
        return "" if text == piece.label.line else f"{text!r} is not {piece.label.line!r}"
    lines = candidates(source, first.role)
    return "" if first.line in lines else f"line {first.line} ({text}) is none of {sorted(lines)}"


def candidates(source: str, role: str) -> set[int]:
    """The lines of the calls that may have a role."""
    tree = ast.parse(source)
    if role == "loss":
        return _losses(tree)
    if role == "batches":
        return {node.iter.lineno for node in ast.walk(tree) if isinstance(node, ast.For)}
    return {call.func.end_lineno or 0 for call in _calls(tree) if _name(call) in CALLS[role]}


def _losses(tree: ast.AST) -> set[int]:
    """The assignments of what backward is called on or given, and expressions given directly."""
    lines, names = set(), set()
    for call in (call for call in _calls(tree) if _name(call) == "backward"):
        given = [*call.args, *([call.func.value] if isinstance(call.func, ast.Attribute) else [])]
        lines |= {node.lineno for node in given}
        names |= {n.id for g in given for n in ast.walk(g) if isinstance(n, ast.Name)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign | ast.AugAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            assigned = {n.id for t in targets for n in ast.walk(t) if isinstance(n, ast.Name)}
            lines |= {node.lineno} if assigned & names else set()
    return lines


def _calls(tree: ast.AST) -> list[ast.Call]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.Call)]


def _name(call: ast.Call) -> str:
    function = call.func
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""
