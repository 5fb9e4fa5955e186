"""The museum's labels: which script holds which mistake, and which findings are true of it."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

HERE = Path(__file__).parent
Kind = Literal["incident", "twin", "look-alike"]


# Rules that no script can show, and where they are tested instead.
WITHOUT_EXHIBIT = {
    "eval.diverging": "evaluations are reported through gradledger or a framework's integration, "
    "which scripts here know nothing of; see tests/unit/test_rules_without_exhibit.py",
    "run.stalled": "a script would have to stand still for a minute; see the same tests",
}


@dataclass(frozen=True)
class Label:
    """One table of a ``labels.toml``; see README.md."""

    source: str
    why: str
    expected: str = ""
    also_acceptable: tuple[str, ...] = ()
    launch: Literal["python", "torchrun2", "torchrun4"] = "python"
    evidence: str = ""
    objective: str = "tokens"
    line: str = ""

    @property
    def is_public(self) -> bool:
        """Whether it re-creates one public report, which ``source`` begins with."""
        return re.match(r"[\w.-]+/[\w.-]+", self.source) is not None


@dataclass(frozen=True)
class Piece:
    """One script of the museum."""

    script: Path
    kind: Kind
    label: Label

    @property
    def name(self) -> str:
        """``family/name``."""
        return f"{self.script.parent.name}/{self.script.stem}"

    @property
    def ranks(self) -> int:
        """Processes that the script wants."""
        return {"python": 1, "torchrun2": 2, "torchrun4": 4}[self.label.launch]

    @property
    def expected(self) -> frozenset[str]:
        """What may be found: the rule that names it, and those as true of it."""
        if self.kind != "incident":
            return frozenset()
        return frozenset([self.label.expected, *self.label.also_acceptable])


def collection() -> list[Piece]:
    """Every script, in the order of the museum."""
    return [*_incidents(), *_lookalikes()]


def one_for_each_rule(pieces: list[Piece]) -> Iterator[Piece]:
    """The first incident of each rule."""
    shown: set[str] = set()
    for piece in pieces:
        if piece.kind == "incident" and piece.label.expected not in shown:
            shown.add(piece.label.expected)
            yield piece


def core(pieces: list[Piece]) -> list[Piece]:
    """The first incident of each rule, with its twin."""
    first = {piece.label for piece in one_for_each_rule(pieces)}
    return [piece for piece in pieces if piece.label in first]


def _incidents() -> Iterator[Piece]:
    for labels in sorted(HERE.glob("exhibits/*/labels.toml")):
        for name, label in _read(labels).items():
            yield Piece(labels.parent / f"{name}.py", "incident", label)
            yield Piece(labels.parent / f"{name}_fixed.py", "twin", label)


def _lookalikes() -> Iterator[Piece]:
    for labels in sorted(HERE.glob("lookalikes*/labels.toml")):
        for name, label in _read(labels).items():
            yield Piece(labels.parent / f"{name}.py", "look-alike", label)


def _read(path: Path) -> dict[str, Label]:
    tables = tomllib.loads(path.read_text()) if path.exists() else {}
    return {name: _label(table) for name, table in tables.items()}


def _label(table: dict[str, str | list[str]]) -> Label:
    fields = {key: tuple(v) if isinstance(v, list) else v for key, v in table.items()}
    return Label(**fields)  # type: ignore[arg-type]
