"""The statements that built a loss, from the source of a function (pure).

They are the assignments of the name that backward is called on, before it in the same block or in a
block around it; in the caller, if the name is a parameter. If the name is assigned in a branch or a
loop, what ran last is not certain, and there is none.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import CodeType
from typing import NamedTuple

MOST_PARSED = 2_000  # lines: parsing holds the interpreter's lock
_SCALING = frozenset(("scale",))  # GradScaler.scale(loss)


class Span(NamedTuple):
    """A part of a file: lines from 1, columns from 1; the end column is the one after it."""

    line: int
    end_line: int
    column: int | None = None
    end_column: int | None = None


class Function(NamedTuple):
    """The parsed source of a function of the script, or of a whole file."""

    tree: ast.AST
    lines_before: int
    indent: int

    def span(self, node: ast.AST) -> Span:
        """Where a node of the tree is in the file."""
        line, end = getattr(node, "lineno", 1), getattr(node, "end_lineno", 1)
        column, end_column = getattr(node, "col_offset", 0), getattr(node, "end_col_offset", 0)
        return Span(
            line + self.lines_before,
            end + self.lines_before,
            column + self.indent + 1,
            end_column + self.indent + 1,
        )


class Loss(NamedTuple):
    """Where a loss was built; ``parameter`` if that began outside of the function."""

    spans: list[Span]
    parameter: str | None


def parsed_function(lines: Sequence[str], code: CodeType) -> Function | None:
    """The function of a code object; None if its source is not known or long."""
    whole = code.co_name == "<module>"
    first = 1 if whole else code.co_firstlineno
    block = list(lines[first - 1 :])
    if not whole and block:
        block = inspect.getblock([f"{line}\n" for line in block])
    if not block or len(block) > MOST_PARSED:
        return None
    text = "\n".join(line.rstrip("\n") for line in block)
    indent = 0 if whole else len(text) - len(text.lstrip())
    try:
        return Function(ast.parse(textwrap.dedent(text)), first - 1, indent)
    except (SyntaxError, ValueError):
        return None


def parsed_file(lines: Sequence[str]) -> Function | None:
    """A whole file; None if its source is not known or long."""
    if not lines or len(lines) > MOST_PARSED:
        return None
    try:
        return Function(ast.parse("\n".join(lines)), 0, 0)
    except (SyntaxError, ValueError):
        return None


def loss_of_backward(function: Function | None, span: Span) -> Loss | None:
    """The loss of the backward at ``span``; None if it is not certain."""
    if function is None:
        return None
    path = _path_to(function.tree, span.line - function.lines_before)
    call = _only_call(path, lambda name: "backward" in name)
    call = call or _only_call(path, lambda name: name == "grad")  # torch.autograd.grad
    return None if call is None else _built(function, path, _root(call))


def loss_of_call(
    function: Function | None, span: Span, called: CodeType, parameter: str
) -> Loss | None:
    """The loss that a call at ``span`` passes to a function of the script."""
    if function is None:
        return None
    path = _path_to(function.tree, span.line - function.lines_before)
    call = _only_call(path, lambda name: name == called.co_name)
    argument = None if call is None else _argument(call, called, parameter)
    if argument is None:
        return None
    loss = _built(function, path, argument)
    if loss is not None and not isinstance(argument, ast.Name):
        return Loss([*loss.spans, function.span(argument)], loss.parameter)
    return loss


def loss_returned(function: Function | None, only_named: bool = False) -> Loss | None:
    """The loss that a function returns: the one named ``loss``, or else, unless ``only_named``,
    the value itself or the first of several; None if it returns a loss at several places.

    If it is not certain which statements built it, the expression that is returned.
    """
    if function is None:
        return None
    definition = next(iter(getattr(function.tree, "body", ())), None)
    returns = [node for node in _own_nodes(definition) if isinstance(node, ast.Return)]
    losses = [
        (node, _named(node.value) if only_named else _returned(node.value)) for node in returns
    ]
    losses = [(node, loss) for node, loss in losses if loss is not None or not only_named]
    if len(losses) != 1:
        return None
    ((node, loss),) = losses
    built = _built(function, _path_to(function.tree, node.lineno), loss)
    name = _inner(loss)
    if built is None and loss is not None:
        return Loss([function.span(loss)], None)  # which statements built it is not certain
    if built is None or loss is None or loss is name or not isinstance(name, ast.Name):
        return built
    return Loss([*built.spans, function.span(loss)], built.parameter)  # return loss / K


def _own_nodes(definition: ast.AST | None) -> Iterator[ast.AST]:
    """The nodes of a function, without those of functions inside."""
    for node in () if definition is None else ast.iter_child_nodes(definition):
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)):
            yield node
            yield from _own_nodes(node)


def _returned(value: ast.expr | None) -> ast.expr | None:
    """The loss in what is returned: ``loss``, ``loss, outputs`` or what is named ``loss``."""
    if isinstance(value, ast.IfExp):  # (loss, outputs) if return_outputs else loss
        return _returned(value.orelse)
    if isinstance(value, ast.Tuple) and value.elts:
        return _returned(value.elts[0])
    return _named(value) if isinstance(value, ast.Dict) else _named(value) or value


def _named(value: ast.expr | None) -> ast.expr | None:
    """The loss in ``{"loss": loss}``, ``dict(loss=loss)`` and ``ModelOutput(loss=loss)``."""
    if isinstance(value, ast.Call):
        return next((keyword.value for keyword in value.keywords if keyword.arg == "loss"), None)
    if isinstance(value, ast.Dict):
        entries = zip(value.keys, value.values, strict=True)
        named = (v for k, v in entries if isinstance(k, ast.Constant) and k.value == "loss")
        return next(named, None)
    return None


def _argument(call: ast.Call, called: CodeType, parameter: str) -> ast.expr | None:
    """What a call passes as a parameter; of a method, ``self`` is passed by the attribute."""
    for keyword in call.keywords:
        if keyword.arg == parameter:
            return keyword.value
    index = called.co_varnames[: called.co_argcount].index(parameter)
    is_method = called.co_varnames[:1] in (("self",), ("cls",))
    index -= isinstance(call.func, ast.Attribute) and is_method
    plain = not any(isinstance(argument, ast.Starred) for argument in call.args)
    return call.args[index] if plain and 0 <= index < len(call.args) else None


def _built(function: Function, path: Sequence[_Step], root: ast.expr | None) -> Loss | None:
    """Where the value of an expression was built."""
    name = _inner(root)
    if not isinstance(name, ast.Name):
        return None if root is None else Loss([function.span(root)], None)
    definitions, certain = _definitions(path, name.id)
    parameter = name.id if certain and name.id in _parameters(path) else None
    if parameter is None and not (definitions and certain):
        return None
    return Loss([function.span(d) for d in definitions], parameter)


def _parameters(path: Sequence[_Step]) -> set[str]:
    """The parameters of the innermost function."""
    for step in reversed(path):
        if isinstance(step.statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
            arguments = step.statement.args
            named = (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
            return {argument.arg for argument in named}
    return set()


def _inner(root: ast.expr | None) -> ast.expr | None:
    """Of ``scaler.scale(loss)``, ``loss / K`` and ``share * loss``, ``loss``."""
    while True:
        if isinstance(root, ast.Call) and _name_of(root.func) in _SCALING and root.args:
            root = root.args[0]
        elif isinstance(root, ast.BinOp):
            factor_first = isinstance(root.op, ast.Mult) and not _is_named_loss(root.left)
            root = root.right if factor_first and _is_named_loss(root.right) else root.left
        else:
            return root


def _is_named_loss(value: ast.expr) -> bool:
    names = (_name_of(node) for node in ast.walk(value) if isinstance(node, ast.expr))
    return any(name.lower().endswith(("loss", "losses")) for name in names)


@dataclass(frozen=True)
class _Step:
    """A statement on the way from the top of the code to the call: its block, and its position."""

    block: list[ast.stmt]
    index: int

    @property
    def statement(self) -> ast.stmt:
        """The statement at the position."""
        return self.block[self.index]


def _path_to(tree: ast.AST, line: int) -> list[_Step]:
    """The statements around a line, from the outermost to the innermost."""
    path: list[_Step] = []
    blocks = list(_blocks(tree))
    while blocks:
        steps = [
            _Step(block, index)
            for block in blocks
            for index, statement in enumerate(block)
            if statement.lineno <= line <= (statement.end_lineno or 0)
        ]
        if not steps:
            break
        path.append(steps[0])
        blocks = list(_blocks(steps[0].statement))
    return path


def _blocks(node: ast.AST) -> Iterator[list[ast.stmt]]:
    for name in ("body", "orelse", "finalbody"):
        block = getattr(node, name, None)
        if isinstance(block, list) and block and isinstance(block[0], ast.stmt):
            yield block
    for inner in (*getattr(node, "handlers", ()), *getattr(node, "cases", ())):
        yield inner.body


def _only_call(path: Sequence[_Step], matches: Callable[[str], bool]) -> ast.Call | None:
    """The only matching call in the innermost statement; None if there are none or several."""
    if not path or next(_blocks(path[-1].statement), None) is not None:
        return None
    calls = [node for node in ast.walk(path[-1].statement) if isinstance(node, ast.Call)]
    matching = [call for call in calls if matches(_name_of(call.func))]
    return matching[0] if len(matching) == 1 else None


def _name_of(function: ast.expr) -> str:
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def _root(call: ast.Call) -> ast.expr | None:
    """What backward starts from: its argument, or what ``.backward`` is called on."""
    if call.args:
        return call.args[0]
    if _name_of(call.func) == "grad":
        return next((k.value for k in call.keywords if k.arg == "outputs"), None)
    return call.func.value if isinstance(call.func, ast.Attribute) else None


def _definitions(path: Sequence[_Step], name: str) -> tuple[list[ast.stmt], bool]:
    """The assignments of a name that ran last, up to one that does not use its old value.

    False if a branch, a loop or a later statement of the same loop may have assigned it, too.
    """
    assignments: list[ast.stmt] = []
    for depth in range(len(path) - 1, -1, -1):
        step = path[depth]
        for statement in _flat(reversed(step.block[: step.index])):
            if not _assigns(statement, name):
                assignments[:0] = _appends(statement, name)
                continue
            if next(_blocks(statement), None) is not None:
                only = _only_assignment(statement, name)
                if only is None or not _is_none_before(step.block, statement, name):
                    return [], False  # a branch or a loop
                assignments.insert(0, only)
                return assignments, True
            if not _is_empty_list(statement):
                assignments.insert(0, statement)
            if not _uses_old_value(statement, name):
                return assignments, True
        outer = path[depth - 1].statement if depth else None
        if isinstance(outer, (ast.FunctionDef, ast.AsyncFunctionDef)):
            break
        if isinstance(outer, (ast.For, ast.AsyncFor, ast.While)):
            repeated = [*step.block[step.index :], *_targets(outer)]
            if any(_assigns(node, name) for node in repeated):
                return [], False
    return assignments, True


def _appends(statement: ast.stmt, name: str) -> list[ast.stmt]:
    """The statements, in loops too, that append to a list of losses: ``losses.append(loss)``."""
    return [
        node
        for node in ast.walk(statement)
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Call)
        and isinstance(node.value.func, ast.Attribute)
        and node.value.func.attr == "append"
        and isinstance(node.value.func.value, ast.Name)
        and node.value.func.value.id == name
    ]


def _only_assignment(statement: ast.stmt, name: str) -> ast.stmt | None:
    """The assignment in a branch, if it is the only one and uses no old value."""
    if not isinstance(statement, ast.If):
        return None
    inner = [s for block in _blocks(statement) for s in _flat(reversed(block)) if _assigns(s, name)]
    is_plain = len(inner) == 1 and next(_blocks(inner[0]), None) is None
    return inner[0] if is_plain and not _uses_old_value(inner[0], name) else None


def _is_none_before(block: Sequence[ast.stmt], statement: ast.stmt, name: str) -> bool:
    """Whether the name is None if the branch does not run: what has a gradient comes from there."""
    before = _flat(reversed(block[: block.index(statement)])) if statement in block else iter(())
    last = next((s for s in before if _assigns(s, name)), None)
    value = getattr(last, "value", None)
    return isinstance(last, ast.Assign) and isinstance(value, ast.Constant) and value.value is None


def _is_empty_list(statement: ast.stmt) -> bool:
    value = getattr(statement, "value", None)
    return isinstance(value, ast.List) and not value.elts


def _targets(loop: ast.stmt) -> list[ast.expr]:
    return [loop.target] if isinstance(loop, (ast.For, ast.AsyncFor)) else []


def _flat(statements: Iterator[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements in reverse order; those in a ``with`` block run as if they were outside."""
    for statement in statements:
        if isinstance(statement, (ast.With, ast.AsyncWith)):
            yield from _flat(reversed(statement.body))
        else:
            yield statement


def _assigns(statement: ast.AST, name: str) -> bool:
    if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return False
    return any(
        isinstance(node, ast.Name) and node.id == name and not isinstance(node.ctx, ast.Load)
        for node in ast.walk(statement)
    )


def _uses_old_value(statement: ast.stmt, name: str) -> bool:
    if isinstance(statement, ast.AugAssign):
        return True
    return any(
        isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load)
        for node in ast.walk(statement)
    )
