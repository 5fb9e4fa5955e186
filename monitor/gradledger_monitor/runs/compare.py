"""Two runs compared: whether the second one is worse balanced than the first."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median

from gradledger_monitor.model.findings import VERDICTS, EvaluationResult
from gradledger_monitor.store.database import Store
from gradledger_monitor.store.runs import queries
from gradledger_monitor.store.runs.queries import RunRow
from gradledger_monitor.store.steps import curves

POINTS = 200
TOLERANCE = 0.01  # relative, of medians


@dataclass(frozen=True)
class ComparedRun:
    """One run: medians of its metrics, and its losses with the tokens trained on until then."""

    run: RunRow
    evaluation: EvaluationResult
    contract: str | None
    metrics: dict[str, float | None]
    tokens: list[float]
    losses: list[float]

    @property
    def open_rules(self) -> set[str]:
        """Rules with a finding that is neither inhibited nor acknowledged."""
        findings = self.evaluation.findings
        return {f.rule for f in findings if f.inhibited_by is None and f.acknowledged is None}


def read_run(store: Store, run: str) -> ComparedRun:
    """Read a run for a comparison. Raises ``UnknownRun``."""
    info = queries.run_info(store, run)
    row = queries.get_run(store, run)
    assert row is not None
    columns = curves.curves(store, run, points=POINTS)
    names = ("samples", "tokens", "micro_batches", "lr", "balance", "misallocation")
    metrics = {name: _median(columns[name]) for name in names}
    losses = columns["loss_token"] if any(v is not None for v in columns["loss_token"]) else None
    pairs = zip(columns["tokens_total"], losses or columns["loss_reported"], strict=True)
    points = [(t, v) for t, v in pairs if v is not None and math.isfinite(v)]
    return ComparedRun(
        run=row,
        evaluation=queries.evaluation(store, run),
        contract=info.contract,
        metrics=metrics,
        tokens=[t for t, _ in points],
        losses=[v for _, v in points],
    )


def _median(values: list[float | None]) -> float | None:
    finite = [v for v in values if v is not None and math.isfinite(v)]
    return median(finite) if finite else None


def loss_at(run: ComparedRun, tokens: float) -> float | None:
    """The loss after ``tokens`` tokens; None if the run has trained on fewer."""
    after = (v for t, v in zip(run.tokens, run.losses, strict=True) if t >= tokens)
    return next(after, None) if run.tokens and tokens > 0 else None


def common_tokens(a: ComparedRun, b: ComparedRun) -> float:
    """Tokens that both runs have trained on."""
    return min(a.tokens[-1], b.tokens[-1]) if a.tokens and b.tokens else 0.0


def regressions(a: ComparedRun, b: ComparedRun, tolerance: float = TOLERANCE) -> Iterator[str]:
    """In what the second run is worse balanced than the first; nothing if it is not."""
    was, now = a.evaluation.verdict, b.evaluation.verdict
    if VERDICTS.index(now) > VERDICTS.index(was):
        yield f"the verdict went from {was} to {now}"
    yield from (f"new finding: {rule}" for rule in sorted(b.open_rules - a.open_rules))
    if a.contract != b.contract:
        yield f"the contract went from {a.contract or 'none'} to {b.contract or 'none'}"
    for name in ("balance", "misallocation"):
        before, after = a.metrics[name], b.metrics[name]
        if before is not None and after is None:
            yield f"{name} is no longer measured"
        elif before is not None and after is not None and _differs(name, before, after, tolerance):
            yield f"{name} went from {before:.4g} to {after:.4g}"


def _differs(name: str, before: float, after: float, tolerance: float) -> bool:
    """A balance is compared relatively; a misallocation absolutely, and may fall."""
    if name == "misallocation":
        return after - before > tolerance
    return abs(after - before) > tolerance * max(abs(before), abs(after))
