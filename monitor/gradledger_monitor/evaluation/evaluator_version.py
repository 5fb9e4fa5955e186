"""Which code evaluates, and for which inputs a snapshot of its state is valid (pure)."""

from __future__ import annotations

from functools import lru_cache
from hashlib import sha256
from pathlib import Path

import gradledger_monitor
from gradledger_monitor.model.step_facts import RunInfo
from gradledger_monitor.rules.overrides import RuleOverrides

# What decides how records become findings. A test holds this list against the imports of
# ``evaluation.run_state``, where evaluation begins.
PACKAGES = ("model", "rules", "evaluation")
MODULES = ("ingest/schema", "common/sanitize")

IMPORTED = "imported"  # instead of a version: the run was evaluated elsewhere


def sources() -> list[Path]:
    """The files that are part of the evaluator."""
    folder = Path(gradledger_monitor.__file__).parent
    packaged = (path for name in PACKAGES for path in sorted((folder / name).rglob("*.py")))
    return [*packaged, *(folder / f"{name}.py" for name in MODULES)]


@lru_cache(maxsize=1)
def version() -> str:
    """Names the code of the evaluator: of equal records, equal code makes equal findings."""
    digest = sha256()
    for path in sources():
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def stamp(choices: RuleOverrides, run: RunInfo) -> str:
    """Names all that an evaluation depends on besides the records: code, choices, run."""
    about = (run.run, run.name, run.world_size, run.optimizers, run.contract, run.declared_scale)
    inputs = (version(), choices, about, run.environment, run.config)
    return sha256(repr(inputs).encode()).hexdigest()
