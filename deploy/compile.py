"""Puts facts and rules into the wheel compiled: they judge about twice as many steps a second.

A build hook of hatchling, for a service that judges much:

    HATCH_BUILD_HOOK_ENABLE_CUSTOM=1 pip wheel --no-deps .

mypyc makes C of the modules below, and a C compiler libraries of that. They lie in the wheel beside
the sources, which manuals and tracebacks read. Without the variable a wheel is pure Python.
"""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from mypyc.build import mypycify
from setuptools import Distribution
from setuptools.command.build_ext import build_ext

PACKAGE = Path("monitor/gradledger_monitor")
# All that runs for every step. What is read over the wire or saved stays as it is: msgspec reads
# the annotations of these classes, and mypyc drops parts of them.
MODEL = (
    *("batch_size", "chart_metrics", "losses", "manual_all_reduce", "numbers", "objectives"),
    *("step_facts", "token_ledger"),
)
EVALUATION = ("rule_outcomes", "rule_evaluation", "run_state", "step_completeness")
ASKED_ONCE = ("__init__", "definition", "catalogue", "overrides", "docs", "state")  # of the rules


class CompiledRules(BuildHookInterface[Any]):
    """The hook, which hatchling finds by its base."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and say where the results lie in the wheel."""
        if version == "editable":
            return
        self._folder = TemporaryDirectory()  # until the wheel is written
        os.chdir(self.root)  # where mypy finds its settings, and modules their names
        built = _compiled(Path(self._folder.name))
        suffix = sysconfig.get_config_var("EXT_SUFFIX")
        libraries = {str(path): str(path.relative_to(built)) for path in built.rglob(f"*{suffix}")}
        build_data["force_include"].update(libraries)
        build_data.update(pure_python=False, infer_tag=True)


def _compiled(folder: Path) -> Path:
    """Where the libraries are, as they lie in a wheel."""
    options = ["--cache-dir", str(folder / "cache")]
    extensions = mypycify(
        [*options, *sources()], target_dir=str(folder / "c"), opt_level="1", debug_level="0"
    )
    command = build_ext(Distribution({"ext_modules": extensions}))
    command.build_lib, command.build_temp = str(folder / "built"), str(folder / "objects")
    command.ensure_finalized()
    command.run()
    return folder / "built"


def sources() -> Iterator[str]:
    """The modules that are compiled, from the root of the project."""
    rules = sorted((PACKAGE / "rules").rglob("*.py"))
    yield from (str(PACKAGE / "model" / f"{name}.py") for name in MODEL)
    yield from (str(PACKAGE / "evaluation" / f"{name}.py") for name in EVALUATION)
    yield from (str(path) for path in rules if path.stem not in ASKED_ONCE)
