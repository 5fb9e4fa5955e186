"""One optimizer step with the records of all ranks merged: everything that a rule may see.

Records say what was seen on each rank; facts say what weight that gave each term's tokens in the
gradient that was applied. How a window may be read is in ``readings``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from gradledger_monitor.ingest.schema import Event, MicroBatch, StepRecord, Term
from gradledger_monitor.model.batch_size import samples_of, tokens_of, whole
from gradledger_monitor.model.chart_metrics import beside
from gradledger_monitor.model.losses import mean_over_tokens, sum_of_roots
from gradledger_monitor.model.manual_all_reduce import UNSEEN, Combining, by_hand, retold
from gradledger_monitor.model.numbers import number
from gradledger_monitor.model.objectives import Reading, Seen, readings, spread
from gradledger_monitor.model.token_ledger import Ledger, total

TOLERANCE = 1e-3  # relative rounding error of fp32 sums
TOLERANCE_HALF = 1e-2  # where the loss is fp16 or bf16

CLIPS = ("clip_norm", "clip_value")  # calls that clip

IMPORTED_FROM = "imported_from"  # where a run's environment says whose log it was

Rows = dict[int, StepRecord]
Kept = list[tuple[int, MicroBatch]]  # with their places
Calls = dict[str, list[Event]]


@dataclass(frozen=True)
class RunInfo:
    """What the run's records say about the run as a whole."""

    run: str
    name: str
    world_size: int = 1
    optimizers: list[str] = field(default_factory=list)
    contract: str | None = None
    declared_scale: float | None = None
    environment: dict[str, str] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)

    @property
    def imported_from(self) -> str | None:
        """The tool whose log this is, when nobody watched the loop itself."""
        return self.environment.get(IMPORTED_FROM)


class StepFacts:
    """One optimizer step. What nearly every rule asks for is worked out at once, the rest later."""

    def __init__(
        self, run: RunInfo, optimizer: int, step: int, records: Rows, combining: Combining | None
    ) -> None:
        """``records`` by rank, the lowest first; ``combining`` is what a loop that synchronises
        by itself did."""
        self.run = run
        self.optimizer = optimizer
        self.step = step
        self.records = records
        self.combining = combining
        self.complete = len(records) >= run.world_size  # every rank's record is here
        # why the hooks could measure nothing of this step, on some rank
        self.unobserved = next(filter(None, map(_unobserved, records.values())), None)
        self.tolerance = _tolerance(records.values())  # rounding error that is not a finding
        # micro-batches that reached the step, with their places
        self.kept_by_rank = {rank: _kept(record) for rank, record in records.items()}
        # of the lowest rank
        self.lowest = lowest = next(iter(records))
        self.first = first = records[lowest]
        self.time = first.time  # when it closed the window, seconds since the epoch
        self.kept = kept = self.kept_by_rank[lowest]
        self.micro_batches = len(kept)  # K
        self.kept_from = kept[0][0] if kept else 0  # backwards before those that reached the step
        # those of them zeroed before any optimizer stepped on them, and not run again
        self.thrown_away = self._thrown_away() if self.kept_from else []
        self.scale = _scale(first)
        self._calls = calls = _by_op(first.events)
        own = [event for event in first.events if event.own]
        self._own = _by_op(own) if len(own) < len(first.events) else calls
        # of all
        self.averaged = run.world_size > 1 and first.sync == "averaged"  # gradients, over the ranks
        self.norm = self._norm()
        # the effective batch, in samples (a language model's sequences); None where not known
        self.samples = self._samples()
        self.loss_reported = self._loss_reported()
        # a_r: what each rank's loop did after backward, clipping taken out
        self.shared_factors = {rank: _shared_factor(record) for rank, record in records.items()}
        self.unmeasured = self._unmeasured()
        self.factor_unmeasured = self._factor_unmeasured()
        self.seen = seen = self._seen()
        # the loss gives the tokens of one micro-batch different weights by design
        apart = [s.of for s in seen if s.of.weight_min is not None]
        self.weighted_inside = any(map(spread, apart))
        self._readings: list[Reading] | None = None  # not made before they are asked for
        self.reading = self._reading() if seen else None

    # ------------------------------------------------------------------ the plain facts

    def _thrown_away(self) -> list[MicroBatch]:
        lost = [m for m in self.first.micro_batches[: self.kept_from] if not m.claimed]
        if not lost:
            return lost
        again = {number(m.fingerprint) for _, m in self.kept} - {None}
        return [m for m in lost if m.fingerprint is None or number(m.fingerprint) not in again]

    def _norm(self) -> float | None:
        """L2 norm of the applied gradient; of a sharded one, over what all ranks hold together."""
        if not self.first.sharded:
            return number(self.first.norm)
        norms = [number(r.norm) for r in self.records.values()]
        known = [norm for norm in norms if norm is not None]
        return math.hypot(*known) if self.complete and len(known) == len(norms) else None

    def calls(self, op: str) -> list[Event]:
        """What was called in the window that was one of these, in order."""
        return self._calls.get(op, [])

    def own(self, op: str) -> list[Event]:
        """Those of them that were on this optimizer."""
        return self._own.get(op, [])

    @property
    def combined_by_hand(self) -> float | None:
        """c, where the loop made the gradient c times the sum over the ranks; 1/R is an average.

        Clipping after it is taken out, and so is the loss scale.
        """
        if self.combining is None or self.combining.factor is None:
            return None
        scales = {number(m.scale) for kept in self.kept_by_rank.values() for _, m in kept}
        scale = scales.pop() if len(scales) == 1 else None
        return self.shared_factors[self.lowest] * (scale or 1.0) / self.run.world_size

    @property
    def optimizer_name(self) -> str:
        """Class of the optimizer, e.g. AdamW."""
        names = self.run.optimizers
        return names[self.optimizer] if self.optimizer < len(names) else "optimizer"

    # ------------------------------------------------------------------ the effective batch

    def _samples(self) -> int | None:
        records, kept_by_rank = self.records, self.kept_by_rank
        return self._over_ranks(
            [[samples_of(m, records[rank]) for _, m in kept] for rank, kept in kept_by_rank.items()]
        )

    @property
    def batch_tokens(self) -> int | None:
        """The effective batch in tokens that count, whatever weight they got."""
        return self._over_ranks([[tokens_of(m) for _, m in k] for k in self.kept_by_rank.values()])

    def _over_ranks(self, parts: list[list[int | None]]) -> int | None:
        return whole([whole(of_rank) for of_rank in parts]) if self.complete else None

    # ------------------------------------------------------------------ weights

    @property
    def absent(self) -> str | None:
        """Of which ranks no record is here, in words; None where every rank's is."""
        if self.complete:
            return None
        ranks = sorted(set(range(self.run.world_size)) - set(self.records))
        return f"no record of rank {', '.join(map(str, ranks[:8]))} arrived"

    def _unmeasured(self) -> str | None:
        """Why the ledger of this window cannot be drawn up, or None."""
        if not self.complete:
            return self.absent
        for rank, record in self.records.items():
            reason = _why_unmeasured(record, self.kept_by_rank[rank], self.combining)
            if reason:
                return reason if self.run.world_size == 1 else f"rank {rank}: {reason}"
        return None

    def _factor_unmeasured(self) -> str | None:
        """Why absolute weights, and so the balance, are not known; relative ones may be."""
        for record in self._accounted.values():
            if record.post_factor is None:
                return record.missing.get("post_factor", "the gradient sample is missing")
            if not math.isfinite(float(record.post_factor)):
                return "the sampled gradients are not finite"
            if "clip_norm" in record.missing:
                return record.missing["clip_norm"]  # the factor may have a clipping in it
        return None

    @property
    def _accounted(self) -> Rows:
        """Ranks that share one gradient; without a sync, each rank is alone: take the lowest."""
        if self.run.world_size == 1 or self.averaged:
            return self.records
        return {self.lowest: self.first}

    def _seen(self) -> list[Seen]:
        """All terms of the window that have tokens, with the factor on their weights."""
        terms: list[Seen] = []
        for rank, record in self._accounted.items():
            factor = self.shared_factors[rank] / (self.run.world_size if self.averaged else 1)
            for index, micro_batch in self.kept_by_rank[rank]:
                applied = factor
                if record.post_factor is None:
                    applied *= _own_factor(micro_batch)
                for name, part, term in _named(micro_batch.terms):
                    tokens = term.tokens
                    if tokens and term.weight is not None:
                        own = float(term.weight)
                        weight = abs(own) * applied
                        one = Seen(rank, index, name, float(tokens), weight, term, own > 0, part)
                        terms.append(one)
        return terms

    @property
    def own_losses(self) -> bool:
        """Whether the backwards of a window are losses of their own, not parts of one batch.

        A critic's are: real against fake, each with one constant target, or with opposite signs.
        """
        kept = self.kept
        if (
            len(kept) > 1
            and kept[0][1].constant_target
            and all(_aims_at_one_number(m) for _, m in kept)
        ):
            return True
        downwards = {s.term for s in self.seen if not s.upwards}
        return bool(downwards) and any(s.term in downwards and s.upwards for s in self.seen)

    @property
    def readings(self) -> list[Reading]:
        """All honest readings of the window, the plainest first."""
        if self._readings is None:
            self._readings = list(readings(self.seen))
        return self._readings

    def _reading(self) -> Reading | None:
        """The plainest fair reading; where none is fair, the plainest even one, or the main one."""
        tolerance, scale = self.tolerance, self.run.declared_scale or 1.0
        unfair = []
        for reading in readings(self.seen):
            if reading.is_fair(tolerance, scale):
                return reading  # most often the first: the others need not be made
            unfair.append(reading)
        self._readings = unfair
        alone = [r for r in unfair if r.name != "all"]
        even = [r for r in alone if r.unit in ("tokens", "class_weight")]
        return next((r for r in even if r.is_even(tolerance)), next(iter(alone), None))

    @property
    def ledger(self) -> Ledger | None:
        """The account that is shown: that of ``reading``."""
        return None if self.unmeasured or self.reading is None else self.reading.ledger

    # ------------------------------------------------------------------ losses

    def _loss_reported(self) -> float | None:
        """What the loop accumulated: the sum of backward's roots, averaged over the ranks."""
        sums = []
        for kept in self.kept_by_rank.values():
            roots = sum_of_roots(kept)
            if roots is None:
                return None
            sums.append(roots)
        return total(sums) / len(sums)

    @property
    def loss_token(self) -> float | None:
        """What one large batch would have reported: the sum of token losses over N."""
        return mean_over_tokens(chain.from_iterable(self.kept_by_rank.values()))

    def figures(self) -> dict[str, float | None]:
        """The numbers that are charted."""
        ledger, record = self.ledger, self.first
        collectives = [m.collectives for m in record.micro_batches if m.collectives is not None]
        known = ledger is not None and self.factor_unmeasured is None
        return {
            "loss_reported": self.loss_reported,
            "loss_token": self.loss_token,
            "norm": self.norm,
            "balance": ledger.balance if ledger is not None and known else None,
            "misallocation": ledger.misallocation if ledger is not None else None,
            "tokens": float(ledger.tokens) if ledger is not None else None,
            "micro_batches": None if self.run.imported_from else float(self.micro_batches),
            "lr": number(record.lr),
            "scale": self.scale,
            "collectives": float(sum(collectives)) if collectives else None,
            **beside(self),
        }


def merge(run: RunInfo, optimizer: int, step: int, records: Rows) -> StepFacts:
    """One step's facts from the records of its ranks."""
    ordered = dict(sorted(records.items())) if len(records) > 1 else records
    if not 1 < run.world_size <= len(ordered):
        return StepFacts(run, optimizer, step, ordered, None)
    combining = by_hand(ordered)
    return StepFacts(run, optimizer, step, retold(ordered, combining), combining)


# ---------------------------------------------------------------------- from record to weights


def _kept(record: StepRecord) -> Kept:
    """Micro-batches, with their place, since the gradients were last absent or zero.

    What ran before was thrown away: another loss's backward that leaked in, or accumulated
    gradients that were zeroed.
    """
    begin = 0
    for index, micro_batch in enumerate(record.micro_batches):
        if micro_batch.fresh:
            begin = index
    return list(enumerate(record.micro_batches))[begin:]


def _by_op(events: list[Event]) -> Calls:
    calls: Calls = {}
    for event in events:
        calls.setdefault(event.op, []).append(event)
    return calls


def _scale(record: StepRecord) -> float | None:
    """The loss scale of the last scaled backward."""
    for micro_batch in reversed(record.micro_batches):
        scale = micro_batch.scale
        if scale is not None:
            return float(scale)
    return None


def _tolerance(records: Iterable[StepRecord]) -> float:
    for record in records:
        if record.half_precision:
            return TOLERANCE_HALF
    return TOLERANCE


def _aims_at_one_number(micro_batch: MicroBatch) -> bool:
    """All targets are the same: more than one of them, for one alone says nothing."""
    return bool(micro_batch.constant_target) and any((t.size or 0) > 1 for t in micro_batch.terms)


def _unobserved(record: StepRecord) -> str | None:
    return record.missing.get("micro_batches")


def _why_unmeasured(record: StepRecord, kept: Kept, combining: Combining | None) -> str | None:
    if record.skipped:
        return "the GradScaler skipped this step"
    if not record.micro_batches:
        return "no backward was seen in this window"
    if len(kept) < len(record.micro_batches) and record.post_factor is None:
        return "gradients were moved between micro-batches"
    if "sync" in record.missing:
        return record.missing["sync"]
    if record.sync == "unknown":
        return combining.reason if combining is not None else UNSEEN
    for _, micro_batch in kept:
        terms = micro_batch.terms
        if not terms:
            return micro_batch.missing.get("terms", "no loss term was seen")
        for term in terms:
            tokens, weight = term.tokens, term.weight
            if tokens is None or weight is None:
                if tokens != 0:
                    reasons = term.missing.values()
                    return next(iter(reasons), f"the weight of {term.kind} was not seen")
            elif not math.isfinite(float(weight)):
                return "the gradient at the loss is not finite"
    return None


def _shared_factor(record: StepRecord) -> float:
    factor = number(record.post_factor)
    if factor is None or not math.isfinite(factor):
        return 1.0
    for event in record.events:
        if event.op == "clip_norm" and event.after == len(record.micro_batches):
            factor /= clip_coefficient(event) or 1.0
    return factor / (number(record.grad_scale) or 1.0)


def clip_coefficient(event: Event) -> float:
    """What ``clip_grad_norm_`` multiplied by: min(1, max_norm / (norm + 1e-6))."""
    norm, limit = number(event.norm), number(event.limit)
    if norm is None or limit is None or not norm >= 0:  # NaN and what is no norm
        return 1.0
    return min(1.0, limit / (norm + 1e-6))


def _own_factor(micro_batch: MicroBatch) -> float:
    """Without a measured factor, the loss scale is what must be taken out of the weights."""
    scale = number(micro_batch.scale)
    return 1.0 / scale if scale else 1.0


def _named(terms: list[Term]) -> list[tuple[str, int, Term]]:
    """Terms by kind and occurrence, e.g. NllLossBackward0#1; parts of one loss are numbered."""
    if len(terms) == 1:
        return [(f"{terms[0].kind}#0", 1, terms[0])]
    named: list[tuple[str, int, Term]] = []
    numbers: dict[str, dict[object, int]] = {}
    parts: dict[str, int] = {}
    for place, term in enumerate(terms):
        known = numbers.setdefault(term.kind, {})
        # two tasks on one head have coefficients of their own, as a rule; chunks have not
        loss = place if term.head is None else (term.head, number(term.coefficient))
        name = f"{term.kind}#{known.setdefault(loss, len(known))}"
        parts[name] = parts.get(name, 0) + 1
        named.append((name, parts[name], term))
    return named
