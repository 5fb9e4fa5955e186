"""The hooks start on systems without the modules and functions that only some systems have.

What a system lacks is read from the type stubs of the standard library, which mypy ships: they
guard each such name with ``sys.platform``. What the hooks use is read from their sources.
"""

from __future__ import annotations

import ast
import importlib.util
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import pytest

import gradledger

from .conftest import Scripts
from .test_without_posix import TRAINS, run

HOOKS = Path(gradledger.__file__).parent
HIDE = """
import importlib, sys, torch
for name in [name for name in sys.modules if name.split(".")[0] == "gradledger"]:
    del sys.modules[name]
for module, attribute in {names}:
    if attribute:
        delattr(importlib.import_module(module), attribute)
    else:
        sys.modules[module] = None  # an import raises ModuleNotFoundError
"""


class Name(NamedTuple):
    """An attribute of a module of the standard library, or the module itself."""

    module: str
    attribute: str

    def __str__(self) -> str:
        return f"{self.module}.{self.attribute}".rstrip(".")


@cache
def used_names() -> set[Name]:
    """What the sources of the hooks name: imports, attributes, and modules in strings."""
    names = set()
    for path in HOOKS.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                names.add(Name(node.value.id, node.attr))
            elif isinstance(node, ast.ImportFrom):
                names |= {Name(node.module or "", alias.name) for alias in node.names}
                names.add(Name(node.module or "", ""))
            elif isinstance(node, ast.Import):
                names |= {Name(alias.name, "") for alias in node.names}
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                names.add(Name(node.value, ""))
    return {name for name in names if name.module in sys.stdlib_module_names}


def missing_on(platform: str) -> set[Name]:
    """What Linux has and another system does not, of the names that the hooks use."""
    return {name for name in used_names() if _has("linux", name) and not _has(platform, name)}


def _has(platform: str, name: Name) -> bool:
    defined = _defined(platform, name.module)
    return name.attribute in defined if name.attribute else bool(defined)


@cache
def _defined(platform: str, module: str) -> set[str]:
    """The names that the stub of a module defines for a system."""
    mypy = importlib.util.find_spec("mypy")
    assert mypy is not None and mypy.submodule_search_locations
    stubs = Path(mypy.submodule_search_locations[0]) / "typeshed" / "stdlib"
    for path in (stubs / f"{module}.pyi", stubs / module / "__init__.pyi"):
        if path.exists():
            return set(_names(ast.parse(path.read_text()).body, platform))
    return set()


def _names(body: list[ast.stmt], platform: str) -> Iterator[str]:
    system = {"sys": SimpleNamespace(platform=platform, version_info=sys.version_info)}
    for node in body:
        if isinstance(node, ast.If):
            taken = eval(compile(ast.Expression(node.test), "", "eval"), system)
            yield from _names(node.body if taken else node.orelse, platform)
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id
        elif isinstance(node, ast.Assign):
            yield from (target.id for target in node.targets if isinstance(target, ast.Name))
        elif isinstance(node, ast.ImportFrom):  # `import x as x` makes x a name of the module
            yield from (alias.name for alias in node.names if alias.asname == alias.name)


def hide(names: Iterable[Name]) -> str:
    """Code that hides names, and makes the hooks look for them again."""
    return HIDE.format(names=[tuple(name) for name in names])


@pytest.fixture(scope="module")
def windows() -> list[Name]:
    """What Windows lacks."""
    return sorted(missing_on("win32"))


def test_the_names_are_found(windows: list[Name]) -> None:
    assert {"fcntl", "os.register_at_fork", "signal.SIG_BLOCK"} <= set(map(str, windows))


def test_macos_has_all_that_the_hooks_use() -> None:
    assert missing_on("darwin") == set()


def test_a_training_on_windows_is_recorded(
    windows: list[Name], scripts: Scripts, nowhere: str
) -> None:
    done = run(scripts, hide(windows), TRAINS.format(steps=12), nowhere)
    assert done.returncode == 0, done.stderr
    assert scripts.on_disk() == 12
    assert done.stderr.count("gradledger:") == done.stderr.count("\n") == 1  # about the spool


def test_training_goes_on_without_each_name(
    windows: list[Name], tmp_path: Path, nowhere: str
) -> None:
    """Also if a system lacks only one of several names that belong together."""
    code = TRAINS.format(steps=12) + "print('trained')"
    for name in windows:
        folder = tmp_path / str(name)
        folder.mkdir()
        done = run(Scripts(folder), hide([name]), code, nowhere)
        assert (done.returncode, done.stdout) == (0, "trained\n"), (name, done.stderr)
        lines = [line for line in done.stderr.splitlines() if "not sent yet" not in line]
        assert len(lines) <= 1, name
        assert all(line.startswith("gradledger: ") for line in lines), name
