"""Finds words that gradledger does not use, in identifiers and in texts.

    python -m language.check [PATH...]      from ``tests/``; all source and documentation if none

Of Python files it reads identifiers, docstrings, other strings and comments; of pages, scripts and
Markdown all but code. Exit status 1 if it finds any.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from language.terms import PARTS, PHRASES, WHOLE, WORDS

ROOT = Path(__file__).parents[2]
FOLDERS = ("hooks", "monitor", "web", "migrations", "docs", "deploy", "examples")
FILES = (
    *("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "ARCHITECTURE.md", "SECURITY.md"),
    *("Makefile", "pyproject.toml", "docker-compose.yml"),
)
SUFFIXES = (".py", ".md", ".html", ".js", ".css", ".toml", ".yml", ".svg", "")
LEFT_OUT = (
    "docs/language.md",
    "docs/.build/vendor/",
    "web/gradledger_web/static/plotly",
    # names in databases and archives of earlier versions
    "migrations/gradledger_migrations/versions/",
    "monitor/gradledger_monitor/store/runs/earlier_names.py",
)

_WORD = re.compile("|".join(rf"(?P<w{i}>\b(?:{w})\b)" for i, w in enumerate(WORDS)), re.IGNORECASE)
_PHRASE = re.compile("|".join(f"(?:{phrase})" for phrase in PHRASES), re.IGNORECASE)
_PART = re.compile("|".join([*WORDS, *PARTS]))
_CODE = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)


class Use(NamedTuple):
    """One word that is not used, where it stands."""

    path: str
    line: int
    kind: str
    word: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.kind}: {self.word}"


def uses(path: Path) -> list[Use]:
    """Everything in a file that has a standard term instead."""
    name, text = str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        found = [*_identifiers(text), *_python_texts(text)]
        found += [(1, "identifier", part) for part in _bad_parts(path.stem)]
    else:
        plain = _CODE.sub(_blank, text) if path.suffix == ".md" else text
        found = list(_texts(plain, 1))
    return sorted(Use(name, *use) for use in found)


def _identifiers(text: str) -> Iterator[tuple[int, str, str]]:
    for node in ast.walk(ast.parse(text)):
        name = _bound(node)
        if name is not None:
            yield from ((node.lineno, "identifier", f"{bad} in {name}") for bad in _bad(name))  # type: ignore[attr-defined]


def _bound(node: ast.AST) -> str | None:
    """The name that a node gives to something."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return node.name
    if isinstance(node, ast.arg):
        return node.arg
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        return node.id
    if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
        return node.attr
    return None


def _bad(name: str) -> list[str]:
    if name.strip("_") in WHOLE:
        return [name]
    return _bad_parts(name)


def _bad_parts(name: str) -> list[str]:
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower().split("_")
    return [word for word in words if _PART.fullmatch(word)]


def _python_texts(text: str) -> Iterator[tuple[int, str, str]]:
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT or token.type == tokenize.STRING:
            yield from _texts(_CODE.sub(_blank, token.string), token.start[0])
        elif tokenize.tok_name[token.type] == "FSTRING_MIDDLE":
            yield from _texts(token.string, token.start[0])


def _texts(text: str, first_line: int) -> Iterator[tuple[int, str, str]]:
    for pattern in (_WORD, _PHRASE):
        for match in pattern.finditer(text):
            yield first_line + text.count("\n", 0, match.start()), "text", match[0]


def _blank(match: re.Match[str]) -> str:
    return re.sub(r"[^\n]", " ", match[0])


def sources(arguments: list[str]) -> list[Path]:
    """The files to read: those below the arguments that git knows."""
    chosen = arguments or [*FOLDERS, *FILES]
    command = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others"]
    listed = subprocess.check_output([*command, "--exclude-standard", "--", *chosen], text=True)
    names = [name for name in listed.split("\0") if name and Path(name).suffix in SUFFIXES]
    paths = [ROOT / name for name in dict.fromkeys(names) if not name.startswith(LEFT_OUT)]
    return [path for path in paths if path.is_file()]


def main(arguments: list[str]) -> int:
    """Print each use; the exit status is 1 if there is any."""
    found = [use for path in sources(arguments) for use in uses(path)]
    for use in found:
        print(use)
    print(f"{len(found)} uses of words that have a standard term (docs/language.md)")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
