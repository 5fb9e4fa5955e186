"""Identifies the code that evaluates, and the inputs for which a snapshot is valid (pure)."""

from __future__ import annotations

from functools import lru_cache
from hashlib import sha256
from pathlib import Path

import gradledger_monitor
from gradledger_monitor.model.step_facts import RunInfo
from gradledger_monitor.rules.overrides import RuleOverrides

# The code that decides how records become findings. A test compares this list with the imports of
# ``evaluation.run_state``, where evaluation begins.
PACKAGES = ("model", "rules", "evaluation")
MODULES = ("ingest/schema", "common/sanitize")

IMPORTED = "imported"  # instead of a version: another service evaluated the run


def sources() -> list[Path]:
    """The files of the evaluator."""
    folder = Path(gradledger_monitor.__file__).parent
    packaged = (path for name in PACKAGES for path in sorted((folder / name).rglob("*.py")))
    return [*packaged, *(folder / f"{name}.py" for name in MODULES)]


@lru_cache(maxsize=1)
def version() -> str:
    """The version of the code that this process runs. Equal versions find the same in equal
    records."""
    return version_of_sources()


def version_of_sources() -> str:
    """The version of the code on disk: a hash of its files."""
    digest = sha256()
    for path in sources():
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def stamp(overrides: RuleOverrides, run: RunInfo) -> str:
    """Identifies what an evaluation depends on besides the records: code, overrides, run."""
    identity = (run.run, run.name, run.world_size, run.optimizers, run.contract, run.declared_scale)
    inputs = (version(), overrides, identity, run.environment, run.config)
    return sha256(repr(inputs).encode()).hexdigest()
