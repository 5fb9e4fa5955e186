"""The source text of a call in the script, on a background thread: file, columns and a few lines.

For a backward, also the statements that built its loss, as far as they are certain: assignments of
the name that backward is called on, before it in the same block or in a block around it; in the
caller, if it is a parameter. If the name is assigned in a branch or a loop, what ran last is not
known, and there is none.
"""

from __future__ import annotations

import ast
import inspect
import io
import linecache
import os
import re
import sys
import textwrap
import time
import tokenize
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from types import CodeType
from typing import NamedTuple

from gradledger import guard
from gradledger.capture.code_locations import CallSite, LocatedCall
from gradledger.identity import replace_surrogates
from gradledger.provenance import repository
from gradledger.records import CodeLocation, CodeRole

LINES_BEFORE, LINES_AFTER = 3, 2  # that are shown around a call
MOST_LINES = 16  # that are sent
MOST_COLUMNS = 240
MOST_PARSED = 2_000  # lines: parsing holds the interpreter's lock
MAX_PATH = 1_024

_SCALING = frozenset(("scale",))  # GradScaler.scale(loss)
_SECRET_NAME = r"(?:token|secret|passw(?:or)?d|passphrase|api_?key|access_?key|credential|auth)"
_SECRETS = (
    re.compile(rf"(?i)({_SECRET_NAME}\w*[\"']?\]?\s*(?::\s*\w+\s*)?[:=]+\s*\w{{0,2}}[\"'])[^\"']+"),
    re.compile(r"([\"'])[A-Za-z0-9_+/=.-]{24,}(?=[\"'])"),  # a long word without a space
    re.compile(r"(://[^/\s:@\"']*:)[^@\s\"']+(?=@)"),  # the password in a URL
)


class Span(NamedTuple):
    """A part of a file: lines from 1, columns from 1; the end column is the one after it."""

    line: int
    end_line: int
    column: int | None = None
    end_column: int | None = None


class ScriptSources:
    """Reads the files of the script, as they were when the hooks were installed."""

    def __init__(self) -> None:
        self.send_text = True  # False: only files and lines
        self._started = time.time()
        try:
            self._folder = Path.cwd()
        except OSError:  # it was removed
            self._folder = Path("/")
        self._lines: dict[str, tuple[str, ...]] = {}

    def locate(self, calls: Sequence[LocatedCall]) -> list[CodeLocation]:
        """The wire records of some calls, and of the losses of the backwards among them."""
        located: list[CodeLocation] = []
        for role, site in calls:
            with guard.fail_open("the source of a call"):
                located += self._locate(role, site)
        return located

    def _locate(self, role: CodeRole, site: CallSite) -> Iterator[CodeLocation]:
        lines = self._lines_of(site.code.co_filename)
        span = _span(site, lines)
        yield self._location(role, site, span, lines)
        if role in ("backward", "scaled_backward"):
            for loss, built in self._losses(site, span):
                yield self._location("loss", loss, built, self._lines_of(loss.code.co_filename))

    def _losses(self, site: CallSite, span: Span) -> list[tuple[CallSite, Span]]:
        """The statements that built the loss, in the order they ran.

        If a function of the script gets the loss as an argument, also those of its caller.
        """
        loss = loss_of_backward(_function(self._lines_of(site.code.co_filename), site), span)
        located: list[tuple[CallSite, Span]] = []
        while loss is not None:
            located[:0] = [(site, built) for built in loss.spans]
            caller = site.caller
            if loss.parameter is None or caller is None:
                break
            lines = self._lines_of(caller.code.co_filename)
            call = _function(lines, caller), _span(caller, lines)
            loss = loss_of_call(*call, site.code, loss.parameter)
            site = caller
        return located

    def _location(
        self, role: CodeRole, site: CallSite, span: Span, lines: Sequence[str]
    ) -> CodeLocation:
        first = max(1, span.line - LINES_BEFORE)
        last = min(span.end_line + LINES_AFTER, first + MOST_LINES - 1)
        shown = lines[first - 1 : last] if self.send_text else ()
        return CodeLocation(
            role=role,
            file=self._path(site.code.co_filename),
            function="" if site.code.co_name == "<module>" else site.code.co_name[:256],
            via=site.via[:64],
            line=span.line,
            end_line=span.end_line,
            column=span.column,
            end_column=span.end_column,
            first=first if shown else None,
            source=[without_secrets(line.rstrip()) for line in shown],
        )

    def _lines_of(self, filename: str) -> tuple[str, ...]:
        """The lines of a file or a cell; none if it cannot be read, or changed since the start."""
        if filename not in self._lines:
            self._lines[filename] = tuple(_cached(filename) or self._read(filename))
        return self._lines[filename]

    def _read(self, filename: str) -> Iterable[str]:
        path = self._folder / filename
        try:
            if path.stat().st_mtime > self._started:
                return ()
            source = path.read_bytes()
            encoding, _ = tokenize.detect_encoding(io.BytesIO(source).readline)
            return replace_surrogates(source.decode(encoding)).splitlines()
        except (OSError, UnicodeError, SyntaxError):
            return ()

    def _path(self, filename: str) -> str:
        """Relative to the working directory of the run, or to the repository; a notebook's cell.

        A file in neither is shown by its full path, in which ``~`` replaces the home folder.
        """
        if filename.startswith("<") or "ipykernel" in filename:
            return _cell_name(filename, self._lines_of(filename))
        path = Path(os.path.normpath(self._folder / filename))
        home = Path(os.path.expanduser("~"))
        for folder, prefix in ((self._folder, ""), (repository(path.parent), ""), (home, "~/")):
            if folder is not None and path.is_relative_to(folder):
                return replace_surrogates(prefix + path.relative_to(folder).as_posix())[:MAX_PATH]
        return replace_surrogates(path.as_posix())[:MAX_PATH]


def without_secrets(line: str) -> str:
    """A line of source with literals that look like secrets replaced, and not too long."""
    for pattern in _SECRETS:
        line = pattern.sub(r"\1***", line)
    return line[:MOST_COLUMNS]


def _cached(filename: str) -> list[str]:
    """The lines of code that has no file and was registered: a cell of a notebook, a doctest."""
    cached = linecache.cache.get(filename)
    if cached is None or len(cached) < 3 or cached[1] is not None:
        return []
    return [line.rstrip("\n") for line in cached[2]]


def _cell_name(filename: str, lines: Sequence[str]) -> str:
    """``In [3]``, as the notebook shows the cell."""
    source, cells = "\n".join(lines).rstrip(), getattr(sys.modules.get("__main__"), "In", None)
    if source and isinstance(cells, list):
        for number, cell in enumerate(cells):
            if str(cell).rstrip() == source:
                return f"In [{number}]"
    return filename if filename.startswith("<") else "notebook cell"


# ---------------------------------------------------------------------- the call


def _span(site: CallSite, lines: Sequence[str]) -> Span:
    """Where the call is. Columns are known from Python 3.11 on, where code objects have them."""
    positions = getattr(site.code, "co_positions", None)
    if positions is not None:
        position = next(islice(positions(), site.instruction // 2, None), None)
        if position is not None and None not in position:
            line, end_line, column, end_column = position
            if lines and end_line > len(lines):
                return Span(site.line, site.line)
            if not lines:
                return Span(line, end_line)
            return Span(
                line,
                end_line,
                _character(lines[line - 1], column) + 1,
                _character(lines[end_line - 1], end_column) + 1,
            )
    return Span(site.line, site.line)


def _character(line: str, offset: int) -> int:
    """The character at an offset in bytes of UTF-8."""
    return len(line.encode()[:offset].decode(errors="replace"))


# ---------------------------------------------------------------------- the loss


class _Function(NamedTuple):
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


def _function(lines: Sequence[str], site: CallSite) -> _Function | None:
    """The function that contains a site; None if its source is not known or long."""
    whole = site.code.co_name == "<module>"
    first = 1 if whole else site.code.co_firstlineno
    block = list(lines[first - 1 :])
    if not whole and block:
        block = inspect.getblock([f"{line}\n" for line in block])
    if not block or len(block) > MOST_PARSED:
        return None
    text = "\n".join(line.rstrip("\n") for line in block)
    indent = 0 if whole else len(text) - len(text.lstrip())
    try:
        return _Function(ast.parse(textwrap.dedent(text)), first - 1, indent)
    except (SyntaxError, ValueError):
        return None


def loss_of_backward(function: _Function | None, span: Span) -> Loss | None:
    """The loss of the backward at ``span``; None if it is not certain."""
    if function is None:
        return None
    path = _path_to(function.tree, span.line - function.lines_before)
    call = _only_call(path, lambda name: "backward" in name)
    return None if call is None else _built(function, path, _root(call))


def loss_of_call(
    function: _Function | None, span: Span, called: CodeType, parameter: str
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


def _built(function: _Function, path: Sequence[_Step], root: ast.expr | None) -> Loss | None:
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
    """Of ``scaler.scale(loss)`` and ``loss / K``, ``loss``."""
    while True:
        if isinstance(root, ast.Call) and _name_of(root.func) in _SCALING and root.args:
            root = root.args[0]
        elif isinstance(root, ast.BinOp):
            root = root.left
        else:
            return root


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
    receiver = call.func.value if isinstance(call.func, ast.Attribute) else None
    return call.args[0] if call.args else receiver


def _definitions(path: Sequence[_Step], name: str) -> tuple[list[ast.stmt], bool]:
    """The assignments of a name that ran last, up to one that does not use its old value.

    False if a branch, a loop or a later statement of the same loop may have assigned it, too.
    """
    assignments: list[ast.stmt] = []
    for depth in range(len(path) - 1, -1, -1):
        step = path[depth]
        for statement in _flat(reversed(step.block[: step.index])):
            if not _assigns(statement, name):
                continue
            if next(_blocks(statement), None) is not None:
                return [], False  # a branch or a loop
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
