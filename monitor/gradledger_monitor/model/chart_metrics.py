"""The metrics of one step that the service stores and charts (pure)."""

from __future__ import annotations

import math
from fnmatch import fnmatchcase

from gradledger_monitor.model.losses.reported import loss_of_large_batch
from gradledger_monitor.model.numbers import number
from gradledger_monitor.model.step_facts import StepFacts

ChartMetrics = dict[str, float | None]

# Names of all metrics, in the order of their columns in the store.
CHART_METRICS = (
    *("loss_reported", "loss_token", "norm", "balance", "misallocation", "tokens"),
    *("micro_batches", "lr", "scale", "collectives", "skipped", "samples"),
    *("clip_norm", "clip_limit", "clipped", "smallest_norm", "largest_norm"),
    *("noise_trace", "noise_signal"),
)

# The metrics that show a finding best, by pattern of the rule. The first pattern that matches
# counts, and of its metrics the first that was measured is drawn.
_METRICS_BY_RULE: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("reduction.token_weights_unequal", ("misallocation",)),
    ("reduction.*", ("balance",)),
    ("scaler.clip_before_unscale", ("clip_norm", "norm")),
    ("scaler.step_bypassed", ("balance", "norm")),
    ("scaler.skipped_steps", ("skipped", "scale")),
    ("scaler.*", ("scale", "norm")),
    ("scheduler.*", ("lr",)),
    ("ddp.uneven_microbatches", ("micro_batches", "misallocation")),
    ("ddp.replica_drift", ("largest_norm", "norm")),
    ("ddp.*", ("collectives",)),
    ("batch.*", ("samples", "tokens")),
    ("clip.*", ("clip_norm", "norm")),
    ("norm.*", ("norm",)),
    ("loop.step_every_microbatch", ("balance",)),
    ("loop.*", ("norm",)),
    ("*", ("loss_reported",)),
)


def metrics_of_rule(rule: str) -> tuple[str, ...]:
    """The metrics that show what a rule found, the best first."""
    return next(metrics for pattern, metrics in _METRICS_BY_RULE if fnmatchcase(rule, pattern))


def chart_metrics(facts: StepFacts) -> ChartMetrics:
    """All metrics of a step by name; None where one is not measured or does not apply."""
    clip_norm, clip_limit, clipped = _clipping(facts)
    smallest_norm, largest_norm = _norms(facts)
    noise_trace, noise_signal = _noise(facts)
    return {
        "loss_reported": facts.loss_reported,
        "loss_token": loss_of_large_batch(facts.loss_token, facts.objectives, facts.tolerance),
        "norm": facts.norm,
        **_account(facts),
        "micro_batches": None if facts.run.imported_from else float(facts.micro_batches),
        "lr": number(facts.record.lr),
        "scale": facts.scale,
        "collectives": _collectives(facts),
        "skipped": _skipped(facts),
        "samples": None if facts.samples is None else float(facts.samples),
        "clip_norm": clip_norm,
        "clip_limit": clip_limit,
        "clipped": clipped,
        "smallest_norm": smallest_norm,
        "largest_norm": largest_norm,
        "noise_trace": noise_trace,
        "noise_signal": noise_signal,
    }


def _account(facts: StepFacts) -> ChartMetrics:
    """B, d and N of the ledger. B needs the factor after backward, d and N do not."""
    ledger = facts.ledger
    if ledger is None:
        return {"balance": None, "misallocation": None, "tokens": None}
    return {
        "balance": ledger.balance if facts.factor_unmeasured is None else None,
        "misallocation": ledger.misallocation,
        "tokens": float(ledger.tokens) if facts.complete else None,
    }


def _collectives(facts: StepFacts) -> float | None:
    """Gradient collectives of the lowest rank in all backwards of the window."""
    micro_batches = facts.record.micro_batches
    counts = [m.collectives for m in micro_batches if m.collectives is not None]
    return float(sum(counts)) if counts else None


def _skipped(facts: StepFacts) -> float | None:
    """1 if the GradScaler found a gradient that is not finite; None without a GradScaler."""
    record = facts.record
    return float(record.skipped) if record.skipped or record.scaler is not None else None


def _clipping(facts: StepFacts) -> tuple[float | None, float | None, float | None]:
    """The norm before the last clipping by norm, its limit, and whether it scaled down.

    A call whose limit is infinite only measures the norm.
    """
    clips = facts.own_calls("clip_norm")
    limit = number(clips[-1].limit) if clips else math.inf
    if limit == math.inf:
        return None, None, None
    norm = number(clips[-1].norm)
    return norm, limit, None if norm is None or limit is None else float(norm > limit)


def _norms(facts: StepFacts) -> tuple[float | None, float | None]:
    """The smallest and the largest norm over the ranks, if each holds the whole gradient."""
    if len(facts.records) == 1 or facts.record.sharded:
        return None, None
    norms = [norm for r in facts.records.values() if (norm := number(r.norm)) is not None]
    return (min(norms), max(norms)) if len(norms) > 1 else (None, None)


def _noise(facts: StepFacts) -> tuple[float | None, float | None]:
    """The two estimates whose ratio, trace / signal, is the simple noise scale in tokens.

    McCandlish et al. 2018 (arXiv:1812.06162), appendix A.1, with one micro-batch of one rank as the
    small batch (b tokens) and the step as the large batch (B = p * b tokens, p pieces):

        trace  = (|G_small|^2 - |G_big|^2) / (1/b - 1/B) = (small - big) * B / (p - 1)
        signal = (B * |G_big|^2 - b * |G_small|^2) / (B - b) = (p * big - small) / (p - 1)

    Each is noisy and unbiased: average each over steps, then divide.
    """
    squares = _noise_squares(facts) if len(facts.record.noise) == 2 else None
    if squares is None or facts.micro_batches < 2 or not facts.batch_tokens:
        return None, None
    small, big = squares
    pieces = facts.micro_batches * len(facts.records)
    trace = (small - big) * facts.batch_tokens / (pieces - 1)
    return trace, (pieces * big - small) / (pieces - 1)


def _noise_squares(facts: StepFacts) -> tuple[float, float] | None:
    """|G_small|^2 and |G_big|^2 without the loss scale; None if they are not comparable."""
    records = facts.records.values()
    if facts.unmeasured is not None or facts.factor_unmeasured is not None:
        return None
    if len(records) > 1 and (not facts.averaged or any(r.sharded for r in records)):
        return None  # the large batch must be the same on every rank
    if len({len(r.micro_batches) for r in records}) > 1:
        return None
    if any(len(r.noise) != 2 or "scale" in m.missing for r in records for m in r.micro_batches):
        return None
    scale = number(facts.record.micro_batches[-1].scale) or 1.0
    # divided twice: the square of an absurd scale may underflow or overflow
    small = sum(float(r.noise[0]) for r in records) / len(records) / scale / scale
    big = float(facts.record.noise[1]) / scale / scale
    return (small, big) if math.isfinite(small + big) else None
