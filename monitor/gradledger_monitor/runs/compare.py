"""Two runs side by side, and whether the second one's balance moved (pure but for reading)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median

from gradledger_monitor.model.findings import EvaluationResult
from gradledger_monitor.store.database import Store
from gradledger_monitor.store.runs import queries
from gradledger_monitor.store.runs.queries import RunRow
from gradledger_monitor.store.steps import curves

POINTS = 200
TOLERANCE = 0.01  # relative, of medians
_WORSE = ("balanced", "incomplete", "suspect", "broken")


@dataclass(frozen=True)
class ComparedRun:
    """One run: medians of its figures, and its loss by the tokens that it had seen."""

    run: RunRow
    evaluation: EvaluationResult
    contract: str | None
    metrics: dict[str, float | None]
    tokens: list[float]
    losses: list[float]

    @property
    def open_rules(self) -> set[str]:
        """Rules that found something that nothing else explains, and nobody has acknowledged."""
        findings = self.evaluation.findings
        return {f.rule for f in findings if f.inhibited_by is None and f.acknowledged is None}


def read_run(store: Store, run: str) -> ComparedRun:
    """One run, to be compared. Raises ``UnknownRun``."""
    info = queries.run_info(store, run)
    row = queries.get_run(store, run)
    assert row is not None
    seen = curves.curves(store, run, points=POINTS)
    named = ("samples", "tokens", "micro_batches", "lr", "balance", "misallocation")
    figures = {name: _median(seen[name]) for name in named}
    losses = seen["loss_token"] if any(v is not None for v in seen["loss_token"]) else None
    pairs = zip(seen["tokens_total"], losses or seen["loss_reported"], strict=True)
    known = [(t, v) for t, v in pairs if v is not None and math.isfinite(v)]
    return ComparedRun(
        row,
        queries.evaluation(store, run),
        info.contract,
        figures,
        [t for t, _ in known],
        [v for _, v in known],
    )


def _median(values: list[float | None]) -> float | None:
    known = [v for v in values if v is not None and math.isfinite(v)]
    return median(known) if known else None


def loss_at(one: ComparedRun, tokens: float) -> float | None:
    """The loss after so many tokens; None beyond what the run has seen."""
    after = (v for t, v in zip(one.tokens, one.losses, strict=True) if t >= tokens)
    return next(after, None) if one.tokens and tokens > 0 else None


def common_tokens(a: ComparedRun, b: ComparedRun) -> float:
    """Tokens that both have seen."""
    return min(a.tokens[-1], b.tokens[-1]) if a.tokens and b.tokens else 0.0


def regressions(a: ComparedRun, b: ComparedRun, tolerance: float = TOLERANCE) -> Iterator[str]:
    """Why the second run is not balanced as the first one is; nothing where it is."""
    was, now = a.evaluation.verdict, b.evaluation.verdict
    if _WORSE.index(now) > _WORSE.index(was):
        yield f"the verdict went from {was} to {now}"
    yield from (f"new finding: {rule}" for rule in sorted(b.open_rules - a.open_rules))
    if a.contract != b.contract:
        yield f"the contract went from {a.contract or 'none'} to {b.contract or 'none'}"
    for name in ("balance", "misallocation"):
        before, after = a.metrics[name], b.metrics[name]
        if before is not None and after is None:
            yield f"{name} is no longer measured"
        elif before is not None and after is not None and _far(name, before, after, tolerance):
            yield f"{name} went from {before:.4g} to {after:.4g}"


def _far(name: str, before: float, after: float, tolerance: float) -> bool:
    """A balance moves in proportion; a misallocation is a share, and one that falls is no harm."""
    if name == "misallocation":
        return after - before > tolerance
    return abs(after - before) > tolerance * max(abs(before), abs(after))
