"""Limits that keep the tree easy to find things in: small packages, short files and functions."""

from __future__ import annotations

import ast
import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from statistics import median, quantiles

ROOT = Path(__file__).parents[2]
SOURCES = [
    p for name in ("hooks", "monitor", "web", "migrations") for p in (ROOT / name).rglob("*.py")
]
PACKAGES = {path.parent for path in SOURCES}
ENTRIES = ("__init__.py", "__main__.py")  # by which a package is imported and run
MOST_MODULES = 15  # in one package, __init__ not counted
MOST_FILE_LINES = 500
MOST_FUNCTION_LINES = 80


def functions() -> Iterator[tuple[int, str]]:
    """The lines of each function with its signature and docstring, and where it is."""
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                yield lines, f"{path.relative_to(ROOT)}:{node.lineno} {node.name}"


def test_no_package_has_more_modules_than_a_reader_surveys() -> None:
    assert len(PACKAGES) > 30
    counts = Counter(path.parent for path in SOURCES if path.name not in ENTRIES)
    assert {str(p.relative_to(ROOT)): n for p, n in counts.items() if n > MOST_MODULES} == {}


def test_functions_are_short() -> None:
    lengths = [lines for lines, _ in functions()]
    assert len(lengths) > 2_000
    assert median(lengths) <= 7
    assert quantiles(lengths, n=10)[-1] <= 25
    assert [where for lines, where in functions() if lines > MOST_FUNCTION_LINES] == []


def test_files_are_short() -> None:
    lengths = {p: len(p.read_text(encoding="utf-8").splitlines()) for p in SOURCES}
    assert median(lengths.values()) <= 110
    assert {str(p.relative_to(ROOT)): n for p, n in lengths.items() if n > MOST_FILE_LINES} == {}


def test_the_architecture_page_names_files_that_exist() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    tracked = subprocess.check_output(["git", "-C", str(ROOT), "ls-files"], text=True).split()
    folders = {f"{parent}/" for name in tracked for parent in Path(name).parents}
    names = re.findall(r"`([\w./-]+(?:\.(?:py|html|js|toml|yml)|/))`", text)
    assert len(names) > 60
    ends = [f"/{name}" for name in (*tracked, *folders)]
    assert [name for name in names if not any(end.endswith(f"/{name}") for end in ends)] == []


def test_each_walk_needs_at_most_four_hops() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    walks = re.findall(r"^\d\. .*", text, re.MULTILINE)
    assert len(walks) == 5
    assert [walk for walk in walks if walk.count("→") > 4] == []
