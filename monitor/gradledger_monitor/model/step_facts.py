"""One optimizer step with the records of all ranks merged: everything that a rule may read.

Records state what each rank observed. Facts state what weight that gives the tokens of each loss
term in the applied gradient (DESIGN section 2). For a term of ``n`` tokens on rank r,

    w = |weight| * a_r * c_r

- ``weight``: the gradient of one token's loss at the loss node, as the hooks measured it;
- ``a_r``: the factor that the loop applied after backward, without clipping (``shared_factors``),
  or 1 / loss scale if it was not measured;
- ``c_r``: 1/R if the gradients were averaged over R ranks, or 1 / ``divisor`` if the wrapper
  divided their sum by another number; else 1.

``objectives`` computes from these weights which objectives the window may have.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

from gradledger_monitor.ingest.schema import Event, MicroBatch, Replica, StepRecord
from gradledger_monitor.model import tolerances
from gradledger_monitor.model.batch_size import samples_of, sum_if_complete, tokens_of
from gradledger_monitor.model.clipping import clipping_of_window, shared_factor, unscale_factor
from gradledger_monitor.model.losses import names as loss_names
from gradledger_monitor.model.losses.repeated import (
    adds_again,
    applied_of,
    data_of,
    discarded,
    leaked_losses,
    left_out_of_second_pass,
    passes_of_one_loss,
)
from gradledger_monitor.model.losses.reported import mean_over_tokens, sum_of_roots
from gradledger_monitor.model.losses.term_weights import as_mean, tokens_and_weight
from gradledger_monitor.model.numbers import number
from gradledger_monitor.model.objectives import (
    Objective,
    fair_together,
    objectives_of,
    signs_differ,
)
from gradledger_monitor.model.ranks import across_groups, manual_all_reduce, shared_out, topology
from gradledger_monitor.model.ranks.exchange import exchange_of, steps_on_changes
from gradledger_monitor.model.ranks.held_in_parts import have_same_tokens
from gradledger_monitor.model.ranks.manual_all_reduce import ManualAllReduce
from gradledger_monitor.model.ranks.outside_wrapper import with_outside
from gradledger_monitor.model.ranks.parts_by_hand import added_up_again
from gradledger_monitor.model.readings import WeightedTerm
from gradledger_monitor.model.token_ledger import Ledger, total
from gradledger_monitor.model.unmeasured import OF_CHANGES, WITHOUT_BACKWARD, why_unmeasured

IMPORTED_FROM = "imported_from"  # key of a run's environment: the tool whose log it was read from

RecordsByRank = dict[int, StepRecord]
CallsByOp = dict[str, list[Event]]


@dataclass(frozen=True)
class RunInfo:
    """The run record, and what it declares."""

    run: str
    name: str
    world_size: int = 1
    optimizers: list[str] = field(default_factory=list)
    contract: str | None = None
    declared_scale: float | None = None
    environment: dict[str, str] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    # other ranks, which pass gradients on in a pipeline, with fingerprints of their parameters
    earlier_stages: tuple[tuple[int, Replica | None], ...] = ()
    # by what these multiply the sums of their gradients over copies of a stage, where it is known
    factors_of_earlier: dict[int, float] = field(default_factory=dict)
    # by rank of these, its position in its pipeline
    positions_of_earlier: dict[int, int] = field(default_factory=dict)
    apart: tuple[topology.Apart, ...] = ()  # other ranks, which train on other data
    parts: RecordsByRank = field(default_factory=dict)  # of ranks with parts of one model, by hand
    tensor_peers: RecordsByRank = field(default_factory=dict)  # hold parts of DTensors of one model
    left: int = 0  # other ranks, which have left a ``Join`` that divides by the remaining ones

    def optimizer_name(self, optimizer: int) -> str:
        """Class of the optimizer with this number, e.g. AdamW."""
        return self.optimizers[optimizer] if optimizer < len(self.optimizers) else "optimizer"

    def optimizer_label(self, optimizer: int) -> str:
        """The same, with its number if there are several, as in URLs: ``Optimizer 1 (AdamW)``."""
        several, name = len(self.optimizers) > 1, self.optimizer_name(optimizer)
        return f"Optimizer {optimizer} ({name})" if several else name

    @property
    def imported_from(self) -> str | None:
        """The tool whose log this run was read from; None if the hooks recorded it."""
        return self.environment.get(IMPORTED_FROM)


class StepFacts:
    """One optimizer step. What nearly every rule reads is computed at once, the rest on access."""

    def __init__(
        self,
        run: RunInfo,
        optimizer: int,
        step: int,
        records: RecordsByRank,
        all_reduce: ManualAllReduce | None,
        ranks: Sequence[int] = (),
    ) -> None:
        """``records`` by rank, ascending; ``all_reduce`` is what a loop that synchronises
        gradients itself did; ``ranks`` are those of ``run``, if not 0, 1, 2, ..."""
        self.run = run
        self.optimizer = optimizer
        self.step = step
        self.records = records
        self.all_reduce = all_reduce
        self.exchange = exchange_of(records)  # of the ranks' models
        self.ranks = ranks or range(run.world_size)
        self.complete = topology.is_complete(records, run.world_size)
        # why the hooks could measure nothing of this step, on some rank
        reasons = (record.missing.get("micro_batches") for record in records.values())
        self.unobserved = next(filter(None, reasons), None)
        self.tolerance = _tolerance(records.values())  # relative; smaller errors are rounding
        # micro-batches whose gradients the step applied, with their indices
        present = {rank: applied_of(record) for rank, record in records.items()}
        leaked = {rank: leaked_losses(applied) for rank, applied in present.items()}
        # without those of another optimizer's loss, which are in the gradients by mistake
        self.applied_by_rank = {
            rank: [pair for pair in applied if pair[0] not in leaked[rank]]
            for rank, applied in present.items()
        }
        # of the lowest rank
        self.lowest_rank = lowest_rank = next(iter(records))
        self.leaked = leaked[lowest_rank]  # indices of these
        self.adds_losses_again = adds_again(self.records[lowest_rank].micro_batches)
        self.record = record = records[lowest_rank]
        self.time = record.time  # when it closed the window, seconds since the epoch
        self.applied = applied = self.applied_by_rank[lowest_rank]
        self.micro_batches = len(applied)  # K
        self.applied_from = applied[0][0] if applied else 0  # index of the first that was applied
        # micro-batches before it, zeroed before any optimizer stepped on them, and not run again
        self.discarded = discarded(record, applied) if self.applied_from else []
        self.scale = _scale(record)
        self._calls = calls = _by_op(record.events)
        own = [event for event in record.events if event.own]
        self._own_calls = _by_op(own) if len(own) < len(record.events) else calls
        # of all ranks
        self.averaged = run.world_size > 1 and record.sync == "averaged"  # the gradients
        self.norm = self._norm()
        # the effective batch in samples (a language model's sequences); None if not known
        self.samples = self._samples()
        self.loss_reported = self._loss_reported()
        # a_r: the factor of each rank's loop after backward, without clipping
        self.shared_factors = {rank: shared_factor(r) for rank, r in records.items()}
        # a factor that is not known multiplies the weights of tokens that all ranks have
        unknown = all_reduce is not None and all_reduce.is_one_factor
        self._of_one_batch = unknown and have_same_tokens(list(records.values()))
        self.unmeasured = self._unmeasured()
        self.factor_unmeasured = self._factor_unmeasured()
        tasks_of, of_rank = loss_names.tasks_of, self.applied_by_rank
        self._tasks_by_rank = {rank: tasks_of(of_rank[rank]) for rank in self._accounted}
        self._tasks = self._tasks_by_rank[self.lowest_rank]
        self.terms = terms = self._terms()
        # the balance under the contract; None where the balance is not known
        intended = None if self.factor_unmeasured else run.declared_scale or 1.0
        self.intended = intended
        self.objectives = objectives_of(terms, self.tolerance, intended)
        # several losses that satisfy the contract only together, e.g. the mean of two heads
        self.together = self._together(intended)

    # ------------------------------------------------------------------ the plain facts

    @property
    def left_out_of_second_pass(self) -> list[MicroBatch]:
        """Micro-batches that only moved the parameters (SAM), while others of them ran again."""
        return left_out_of_second_pass(self.record, self.applied) if self.applied_from else []

    @property
    def parameters_changed(self) -> bool:
        """Whether gradients at different parameters are added up, as of SAM without zeroing."""
        return any(m.parameters_changed for _, m in self.applied[1:])

    @property
    def two_of_each_batch(self) -> bool:
        """Whether each batch has two backwards in a row, as in adversarial training."""
        data = [data_of(m) for _, m in self.applied]
        return (
            data[::2] == data[1::2] and None not in data and (len(set(data)) > 1 or len(data) == 2)
        )

    @property
    def moved_unknown(self) -> str | None:
        """Why gradients that were cleared may be kept in other buffers; None if they are not.

        What was stepped on is then no multiple of what the last backward left.
        """
        last_clipped = any(clip.factor is not None for clip in self.calls("clip_value"))
        if self.record.post_factor is not None or last_clipped:
            return None
        unseen = self.record.missing.get("post_factor")
        return unseen if self.all_reduce is None else self.all_reduce.reason or None

    def _norm(self) -> float | None:
        """L2 norm of the applied gradient; of a sharded one, over the shards of all ranks."""
        if not self.record.sharded:
            return number(self.record.norm)
        norms = [number(r.norm) for r in self.records.values()]
        measured = [norm for norm in norms if norm is not None]
        return math.hypot(*measured) if self.complete and len(measured) == len(norms) else None

    def calls(self, op: str) -> list[Event]:
        """The calls of one kind in the window, in order."""
        return self._calls.get(op, [])

    def own_calls(self, op: str) -> list[Event]:
        """Those of them that were on this optimizer."""
        return self._own_calls.get(op, [])

    @property
    def all_reduce_factor(self) -> float | None:
        """c, if the loop itself made the gradient c times the sum over the ranks; 1/R averages.

        Clipping after it, and the loss scale, are divided out.
        """
        if self.all_reduce is None or self.all_reduce.factor is None:
            return None
        scales = {number(m.scale) for applied in self.applied_by_rank.values() for _, m in applied}
        scale = scales.pop() if len(scales) == 1 else None
        return self.shared_factors[self.lowest_rank] * (scale or 1.0) / self.run.world_size

    @property
    def divisor(self) -> float | None:
        """What the wrapper divides the sum of the ranks' gradients by, if not by their number."""
        divisors = self.record.divisors if self.averaged else []
        return (number(divisors[0]) or None) if len(divisors) == 1 else None  # nothing divides by 0

    @property
    def ranks_divisor(self) -> float:
        """What the sum of the ranks' gradients was divided by; 1 if they were not combined."""
        return self.divisor or (self.run.world_size if self.averaged else 1)

    @property
    def optimizer_name(self) -> str:
        """Class of the optimizer, e.g. AdamW."""
        return self.run.optimizer_name(self.optimizer)

    @property
    def optimizer_label(self) -> str:
        """The same, with its number if there are several."""
        return self.run.optimizer_label(self.optimizer)

    # ------------------------------------------------------------------ the effective batch

    def _samples(self) -> int | None:
        return self._sum_over_ranks(
            [
                [samples_of(m, self.records[rank]) for _, m in applied]
                for rank, applied in self.applied_by_rank.items()
            ]
        )

    @property
    def batch_tokens(self) -> int | None:
        """The effective batch in tokens that count, whatever their weights."""
        ranks = self.applied_by_rank.values()
        return self._sum_over_ranks([[tokens_of(m) for _, m in applied] for applied in ranks])

    def _sum_over_ranks(self, counts: list[list[int | None]]) -> int | None:
        sums = [sum_if_complete(of_rank) for of_rank in counts]
        return sum_if_complete(sums) if self.complete else None

    # ------------------------------------------------------------------ weights

    @property
    def missing_ranks(self) -> str | None:
        """Which ranks have sent no record, as a sentence; None if every rank has."""
        if self.complete:
            return None
        ranks = sorted(set(self.ranks) - set(self.records))
        return f"no record of rank {', '.join(map(str, ranks[:8]))} arrived"

    @property
    def is_of_changes(self) -> bool:
        """Whether an outer optimizer steps on changes of the models, as in DiLoCo, and no loss."""
        return self.unmeasured == OF_CHANGES

    def _unmeasured(self) -> str | None:
        """Why this window has no ledger; None, too, if a rank is missing: ``factor_unmeasured``."""
        if len(self.records) > 1 and steps_on_changes(self.records):
            return OF_CHANGES
        for rank, record in self.records.items():
            applied = self.applied_by_rank[rank]
            reason = why_unmeasured(record, applied, self.all_reduce, self._of_one_batch)
            if reason in WITHOUT_BACKWARD and record.trainable and len(self.run.optimizers) > 1:
                reason = f"no backward reached the parameters of {self.optimizer_label}"
            if reason:
                of_all = self.all_reduce is not None and reason == self.all_reduce.reason
                return reason if of_all or self.run.world_size == 1 else f"rank {rank}: {reason}"
        return None

    def _factor_unmeasured(self) -> str | None:
        """Why absolute weights, and so the balance, are not known; relative ones may be."""
        if not self.complete:
            return self.missing_ranks
        if self._of_one_batch and self.all_reduce is not None:
            return self.all_reduce.reason
        for record in self._accounted.values():
            if len(record.divisors) > 1:
                return "gradients of different parameters are divided by different numbers"
            if record.post_factor is None:
                return record.missing.get("post_factor", "the gradient sample is missing")
            if not math.isfinite(float(record.post_factor)):
                return "the sampled gradients are not finite"
            if "clip_norm" in record.missing:
                return record.missing["clip_norm"]  # the factor may include a clipping
            if any(e.op == "clip_norm" and e.norm is None for e in record.events):
                return "the norm that the gradients were clipped with was not read"
        weighed = self.applied_by_rank, self.shared_factors, self.tolerance
        if not (self.averaged or self.record.wrapper) and topology.divide_by_all(*weighed):
            return topology.NORMALISED
        terms = (t for _, m in chain.from_iterable(self.applied_by_rank.values()) for t in m.terms)
        return next((t.missing["scale"] for t in terms if "scale" in t.missing), None)

    @property
    def step_rate(self) -> float | None:
        """How far the parameters move for a gradient with a balance of 1, if no optimizer of
        PyTorch moves them: the learning rate of a loop that follows its gradient. None if the
        change was not a multiple of the gradient.
        """
        size = number(self.record.step_size)
        if size is None:
            return None
        if self.record.post_factor is None:
            factor = clipping_of_window(self.record) / (self.scale or 1.0)
        else:
            factor = number(self.record.post_factor) or 0.0
        return size / factor if factor else None

    @property
    def changed_after_backward(self) -> bool:
        """Whether the loop itself changed the gradients, and not by one factor.

        Neither combining the ranks nor unscaling may be a part of that change.
        """
        synced = self.run.world_size == 1 or self.averaged
        return synced and self.scale is None and all(r.changed for r in self._accounted.values())

    @property
    def _accounted(self) -> RecordsByRank:
        """Ranks that share one gradient; without a sync each rank has its own: take the lowest."""
        if self.run.world_size == 1 or self.averaged:
            return self.records
        return {self.lowest_rank: self.record}

    def _terms(self) -> list[WeightedTerm]:
        """All terms of the window that have tokens, with the weight of each of their tokens."""
        terms: list[WeightedTerm] = []
        forms = loss_names.forms_of(self.applied_by_rank, self._tasks_by_rank)
        for rank, tasks in self._tasks_by_rank.items():
            # DDP averages in backward: what a rank multiplies its gradients by afterwards, it
            # multiplies the tokens of all ranks by. The balance is that of the lowest rank.
            factor_of = rank if self.all_reduce is not None else self.lowest_rank
            is_unmeasured = self.records[factor_of].post_factor is None
            applied = self.applied_by_rank[rank]
            divisor = self.ranks_divisor * passes_of_one_loss(applied)
            rank_factor = self.shared_factors[factor_of] / divisor
            later = topology.rescaled_later(applied)
            for index, micro_batch in applied:
                factor = rank_factor * later.get(index, 1.0)
                unscale = unscale_factor(micro_batch)
                if is_unmeasured:
                    factor *= unscale
                task = tasks.get(index, 0)
                for name, part, sent in loss_names.named(micro_batch.terms, task, forms):
                    term = as_mean(sent)
                    counted = tokens_and_weight(term, part)
                    if counted is not None:
                        where = rank, index, name, counted[0]
                        factors = factor, factor / (unscale or 1.0)  # 0 for an infinite scale
                        weight, positive = abs(counted[1]) * factor, counted[1] > 0
                        terms.append(WeightedTerm(*where, weight, term, positive, part, *factors))
        return terms

    def micro_batches_of(self, objective: Objective | None) -> int:
        """K of an objective: if backward is called for each task, the micro-batches of its task."""
        if objective is None or not self.separate_tasks:
            return self.micro_batches
        return len(loss_names.micro_batches_of(self.applied_by_rank, objective.terms))

    @property
    def separate_tasks(self) -> bool:
        """Whether backward is called for each of several tasks, or for a further loss."""
        return len(set(self._tasks.values())) > 1 or 0 < len(self._tasks) < len(self.applied)

    @property
    def separate_losses(self) -> bool:
        """Whether the backwards of a window are separate losses, not parts of one batch.

        A critic's are: real against fake, each once, or with opposite signs.
        """
        targets = loss_names.constant_targets(self.applied)
        distinct = len(targets) > 1 and len(set(targets.values())) == len(self.applied)
        return distinct or signs_differ(self.terms)

    @property
    def may_be_separate_losses(self) -> bool:
        """Whether constant targets leave open if the backwards are one loss or several."""
        return loss_names.may_be_separate(self.applied, self._tasks)

    def _together(self, intended: float | None) -> Objective | None:
        if len(self.objectives) < 2 or self.objectives[0].reading.is_fair(self.tolerance, intended):
            return None
        return fair_together(self.objectives, self.tolerance, intended)

    @property
    def objective(self) -> Objective | None:
        """The objective that is shown: the one with the most gradient weight, or all of them if
        they satisfy the contract together."""
        return self.together or next(iter(self.objectives), None)

    def show(self, objective: Objective | None) -> None:
        """Show the main objective in the unit that earlier windows show."""
        if objective is not None and [o.name for o in self.objectives] == [objective.name]:
            self.objectives = [objective]

    @property
    def ledger(self) -> Ledger | None:
        """The ledger of ``objective``, if the window could be measured."""
        return None if self.unmeasured or self.objective is None else self.objective.ledger

    # ------------------------------------------------------------------ losses

    def _loss_reported(self) -> float | None:
        """The loss that the loop accumulated: the sum of backward's roots, averaged over ranks."""
        sums = []
        for applied in self.applied_by_rank.values():
            roots = sum_of_roots(applied)
            if roots is None:
                return None
            sums.append(roots)
        return total(sums) / len(sums)

    @property
    def loss_token(self) -> float | None:
        """The sum of token losses over N, without a constant that multiplies the loss."""
        return mean_over_tokens(chain.from_iterable(self.applied_by_rank.values()))


def merge(run: RunInfo, optimizer: int, step: int, records: RecordsByRank) -> StepFacts:
    """One step's facts, of all ranks or of the first group with a loss if nothing combines them."""
    ordered, all_reduce = across_groups.with_groups(records, run.world_size)
    group = topology.data_group(ordered, range(run.world_size))
    if group:
        others = across_groups.beside(ordered, group, run.world_size)
        run = replace(run, world_size=len(group), **others)
        ordered = topology.members(ordered, group)
    if not 1 < run.world_size <= len(ordered):
        return StepFacts(run, optimizer, step, ordered, None, group)
    ordered, of_shares = shared_out.with_shares(ordered)
    all_reduce = all_reduce or of_shares or added_up_again(ordered)
    all_reduce = all_reduce or manual_all_reduce.infer(ordered)
    averaged = with_outside(manual_all_reduce.as_averaged(ordered, all_reduce), all_reduce)
    return StepFacts(run, optimizer, step, averaged, all_reduce, group)


# ---------------------------------------------------------------------- from record to weights


def _by_op(events: list[Event]) -> CallsByOp:
    calls: CallsByOp = {}
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
    half = any(record.half_precision for record in records)
    return tolerances.WEIGHT_HALF if half else tolerances.WEIGHT
