"""The statement that updates the parameters, in a loop that has no optimizer of PyTorch (pure).

A statement writes to something in place or assigns it, and uses gradients: ``.grad``, what
``torch.autograd.grad`` returns, or a variable that was computed from these, such as a momentum. Of
several, it is the one whose own result no other one uses. If that leaves more than one, there is
none: which of them ran is not certain.

It is looked for in the function that calls backward, in those of the same file that are called
after it, and in the functions around it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple

from gradledger.capture.code.loss_statements import Function, Span

_GRADIENT = "grad"
_ASSIGNMENTS = (ast.Assign, ast.AnnAssign, ast.AugAssign)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


class _Update(NamedTuple):
    """A statement that writes to ``target`` and uses gradients and ``names``."""

    statement: ast.stmt
    target: str
    names: frozenset[str]


def update_in(function: Function, line: int) -> Span | None:
    """The update in a function of which ``line`` calls backward; None if it is not certain."""
    tainted = _returned_gradients(function.tree, line - function.lines_before)
    span = _only_update(function, function.tree, tainted)
    if span is not None:
        return span
    steps = [
        call
        for call in _calls(function.tree)
        if isinstance(call.func, ast.Attribute)
        and call.func.attr == "step"
        and "opt" in ast.unparse(call.func.value).lower()  # no scheduler, and no environment
    ]
    return function.span(steps[0]) if len(steps) == 1 else None


def update_in_called(file: Function, function: Function, line: int) -> Span | None:
    """The update in the only function of the file that updates and is called in ``function``."""
    names = {_name(call.func) for call in _calls(function.tree)}
    spans = [
        span
        for node in ast.walk(file.tree)
        if isinstance(node, _FUNCTIONS) and node.name in names
        if (span := _only_update(file, node, _parameters(node))) is not None
    ]
    own = range(line, line + 1)
    spans = [span for span in spans if span.line not in own]
    return spans[0] if len(spans) == 1 else None


def _only_update(function: Function, tree: ast.AST, tainted: set[str]) -> Span | None:
    updates, used = _updates(tree, tainted)
    used.update(name for update in updates for name in update.names - {update.target})
    last = [update for update in updates if update.target not in used]
    return function.span(last[0].statement) if len(last) == 1 else None


def _updates(tree: ast.AST, tainted: set[str]) -> tuple[list[_Update], set[str]]:
    """Statements that write to something and use gradients, and the variables that loops use."""
    updates: list[_Update] = []
    used: set[str] = set()
    for statement in _statements(tree):
        if isinstance(statement, (ast.For, ast.AsyncFor)):
            if _uses(statement.iter, tainted):
                tainted |= _names(statement.target)
                used |= _names(statement.iter)
            continue
        written = _written(statement)
        if written is None:
            continue
        target, value = written
        if not _uses(value, tainted) or _is_gradient(target):
            continue
        name = _base(target)
        updates.append(_Update(statement, name, frozenset(_names(value))))
        tainted.add(name)
    return updates, used


def _written(statement: ast.stmt) -> tuple[ast.expr, ast.AST] | None:
    """What a statement writes to, and what it uses for that."""
    if isinstance(statement, _ASSIGNMENTS) and statement.value is not None:
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        return targets[0], statement.value
    call = statement.value if isinstance(statement, ast.Expr) else None
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
        return None
    if not call.func.attr.endswith("_"):  # in place, as PyTorch names such methods
        return None
    target: ast.expr = call.func.value
    while isinstance(target, ast.Call) and isinstance(target.func, ast.Attribute):
        target = target.func.value  # v.mul_(0.9).add_(p.grad)
    return target, ast.Tuple([*call.args, *(k.value for k in call.keywords)], ast.Load())


def _returned_gradients(tree: ast.AST, line: int) -> set[str]:
    """The names that a call of ``torch.autograd.grad`` at a line is assigned to."""
    for statement in _statements(tree):
        end = statement.end_lineno or statement.lineno
        if isinstance(statement, ast.Assign) and statement.lineno <= line <= end:
            return {name for target in statement.targets for name in _names(target)}
    return set()


def _parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    """The arguments of a function that are named as gradients."""
    arguments = (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)
    return {argument.arg for argument in arguments if _GRADIENT in argument.arg.lower()}


def _uses(value: ast.AST, tainted: set[str]) -> bool:
    return bool(_gradients(value)) or not tainted.isdisjoint(_names(value))


def _is_gradient(target: ast.AST) -> bool:
    """Whether a gradient itself is written to: it is scaled, clipped or cleared."""
    return bool(_gradients(target))


def _gradients(tree: ast.AST) -> list[ast.Attribute]:
    """``p.grad``, and not the function ``torch.autograd.grad``."""
    called = {id(call.func) for call in _calls(tree)}
    return [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and node.attr == _GRADIENT and id(node) not in called
    ]


def _base(target: ast.expr) -> str:
    """The variable in ``p``, ``p.data``, ``state[p]["momentum"]``."""
    node: ast.AST = target
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ast.unparse(target)


def _names(tree: ast.AST) -> set[str]:
    """The variables that are used, except those whose gradient alone is."""
    owners = {id(node) for gradient in _gradients(tree) for node in ast.walk(gradient.value)}
    return {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and id(n) not in owners}


def _name(function: ast.expr) -> str:
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def _calls(tree: ast.AST) -> Iterator[ast.Call]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.Call))


def _statements(tree: ast.AST) -> list[ast.stmt]:
    """The statements of a function or a file in order, without those of functions inside."""
    body = getattr(tree, "body", [])
    if isinstance(tree, ast.Module) and len(body) == 1 and isinstance(body[0], _FUNCTIONS):
        body = body[0].body  # the source of one function
    statements: list[ast.stmt] = []
    for statement in body:
        if isinstance(statement, (*_FUNCTIONS, ast.ClassDef)):
            continue
        statements.append(statement)
        for name in ("body", "orelse", "finalbody"):
            inner = getattr(statement, name, None)
            if inner and not isinstance(statement, _FUNCTIONS):
                statements += _statements(ast.Module(inner, []))
    return sorted(statements, key=lambda each: each.lineno)
