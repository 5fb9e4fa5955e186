"""Statements of the script, in the lines that are recorded around its calls (pure)."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gradledger_monitor.model.code.locations import CodeLocation

REMOVED = "***"  # in place of a secret
# A line that ends with one of these continues on the next one.
_CONTINUES = re.compile(r"(?:[(\[{,\\+\-*/%@=<>&|^~.]|\b(?:and|or|not|in|is|if|else|return))$")
_CONTINUED = re.compile(r"[)\]}.,+\-*/%=<>&|^]|(?:and|or|in|is|if|else|for)\b(?!.*:$)")


@dataclass(frozen=True)
class Lines:
    """Lines of one file by number, as far as they are known."""

    text: Mapping[int, str]

    def statement(self, number: int) -> ast.stmt | None:
        """The statement of a line, if it is whole, and the only one of its line."""
        line, before, after = (self.text.get(number + i) for i in (0, -1, 1))
        if line is None or REMOVED in line or (before is None and number > 1):
            return None
        code = line.strip()
        if _CONTINUES.search(code_of(before)) or _CONTINUED.match((after or "").strip()):
            return None
        try:
            (statement,) = ast.parse(code).body
        except (SyntaxError, ValueError):
            return None
        return statement

    def call(self, location: CodeLocation) -> ast.Call | None:
        """The call at a location, if its line is nothing else."""
        if location.end_line != location.line:
            return None
        statement = self.statement(location.line)
        node = statement.value if isinstance(statement, ast.Expr) else None
        return node if isinstance(node, ast.Call) else None

    def between(self, first: int, last: int) -> list[str]:
        """The lines from one to another."""
        return [self.text[number] for number in range(first, last + 1)]

    def is_block(self, first: int, last: int) -> bool:
        """Whether two lines are statements of one block: what runs the first one runs the other."""
        numbers = range(first, last + 1)
        if first >= last or any(number not in self.text for number in numbers):
            return False
        lines = self.between(first, last)
        indent = indent_of(lines[0])
        code = [line for line in lines if code_of(line)]
        is_even = all(indent_of(line) >= indent for line in code)
        leaves = any(re.match(r"(?:continue|break|return|raise)\b", line.strip()) for line in code)
        return (
            is_even
            and indent_of(lines[-1]) == indent
            and not leaves
            and REMOVED not in "".join(lines)
        )

    def header(self, number: int, pattern: re.Pattern[str]) -> re.Match[str] | None:
        """The statement around a line that matches, if all lines in between are in its block."""
        indent = indent_of(self.text.get(number, ""))
        for above in range(number - 1, 0, -1):
            line = self.text.get(above)
            if line is None:
                return None
            if code_of(line) and indent_of(line) < indent:
                return pattern.match(line)
        return None

    def has_neighbour(self, number: int) -> bool:
        """Whether the code before or after a line is in its block, which is not left empty."""
        indent = indent_of(self.text[number])
        for way in (-1, 1):
            near = number + way
            while near in self.text and not code_of(self.text[near]):
                near += way
            line = self.text.get(near, "")
            inner = indent_of(line)
            if line and (inner == indent or (way < 0 and inner > indent)):
                return True
        return False


def known_lines(located: Iterable[CodeLocation], file: str) -> Lines:
    """All lines of a file that are recorded with some call, without blanks at their ends."""
    return Lines({n: line.rstrip() for n, line in recorded_lines(located, file).items()})


def recorded_lines(located: Iterable[CodeLocation], file: str) -> dict[int, str]:
    """The same lines as they are in the file; one that ends with CRLF has the CR."""
    lines: dict[int, str] = {}
    for location in located:
        if location.file == file:
            lines.update(enumerate(location.source, location.first or location.line))
    return lines


def indent_of(line: str) -> int:
    return len(line) - len(line.lstrip())


def code_of(line: str | None) -> str:
    """A line without its comment; not exact if a string holds a ``#``."""
    return (line or "").partition("#")[0].strip()
