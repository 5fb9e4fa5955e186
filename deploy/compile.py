"""Compiles model, rules and evaluation into the wheel: they evaluate about twice as many steps/s.

A build hook of hatchling, for a service that evaluates many runs:

    HATCH_BUILD_HOOK_ENABLE_CUSTOM=1 pip wheel --no-deps .

mypyc translates the modules below to C, and a C compiler builds libraries from that. The wheel
contains them beside the sources, which rule pages and tracebacks read. Without the variable, a
wheel is pure Python. ``GRADLEDGER_OPTIMIZATION`` is the level of the C compiler, 1 if not set.
Tests set 0: it takes two thirds of the time.
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
# The modules that run for every step. Structs that are read from the wire or saved stay Python:
# msgspec reads the annotations of these classes, and mypyc drops parts of them.
MODEL = (
    *("batch_size", "chart_metrics", "losses/reported", "losses/term_weights", "numbers"),
    *("objectives", "readings", "ranks/manual_all_reduce", "ranks/outside_wrapper", "ranks/rows"),
    *("ranks/weighted_sum", "step_facts", "token_ledger", "tolerances", "unmeasured"),
)
EVALUATION = ("rule_outcomes", "rule_evaluation", "run_state", "step_completeness")
NOT_PER_STEP = ("__init__", "definition", "catalogue", "overrides", "docs", "state")  # in rules


class CompiledRules(BuildHookInterface[Any]):
    """The hook, which hatchling finds by its base class."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and set the paths of the libraries in the wheel."""
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
    """The folder of the libraries, laid out as in a wheel."""
    options = ["--cache-dir", str(folder / "cache")]
    extensions = mypycify(
        [*options, *sources()],
        target_dir=str(folder / "c"),
        opt_level=os.environ.get("GRADLEDGER_OPTIMIZATION", "1"),
        debug_level="0",
        multi_file=True,  # gcc takes minutes for all modules in one file
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
    yield from (str(path) for path in rules if path.stem not in NOT_PER_STEP)
