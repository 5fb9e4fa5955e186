"""Storing batches: one transaction per batch, every record once."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, Row, bindparam, delete, func, select, update

from gradledger_monitor.ingest import schema
from gradledger_monitor.ingest.decode import Batch, ProcessRecords, Refusal, Refusals
from gradledger_monitor.model.attempts import job_key
from gradledger_monitor.model.run_history import BEFORE_EVALUATION, LATE_STEPS
from gradledger_monitor.store import dialects
from gradledger_monitor.store.database import Store
from gradledger_monitor.store.dialects import without_nul
from gradledger_monitor.store.evaluation import snapshots
from gradledger_monitor.store.runs import attempts, checkpoints, code_locations, tags
from gradledger_monitor.store.steps import chunks, layers
from gradledger_monitor.store.steps.chunks import ChunkKey
from gradledger_monitor.store.tables import evals, inactivity, progress, ranks, runs

CheckTime = Callable[[], None]
StepLine = tuple[int, schema.StepRecord]
# Compiled once: they are executed with every batch.
RUN_BY_ID = select(runs).where(runs.c.id == bindparam("of_id")).with_for_update()
TOUCH_RUN = (
    update(runs)
    .where(runs.c.key == bindparam("of_run"))
    .values(
        started=bindparam("new_start"), last_seen=bindparam("now"), revision=runs.c.revision + 1
    )
)
TOUCH_RANK = (
    update(ranks)
    .where(ranks.c.run == bindparam("of_run"), ranks.c.rank == bindparam("of_rank"))
    .values(last_seen=bindparam("now"))
)
PROGRESS_OF = select(progress.c.optimizer, progress.c.step, progress.c.pruned).where(
    progress.c.run == bindparam("of_run")
)


def _no_limit() -> None:
    pass


@dataclass
class StoreResult:
    """The result of storing a batch."""

    stored: int = 0
    duplicates: int = 0
    refused: Refusals = field(default_factory=Refusals)
    check_time: CheckTime = field(default=_no_limit, repr=False)

    def count(self, stored: int, sent: int) -> None:
        """Count lines, of which ``stored`` were new. Raises if the batch takes too long."""
        self.check_time()
        self.stored += stored
        self.duplicates += sent - stored


def store_batch(
    store: Store, batch: Batch, now: float, begin: Callable[[], CheckTime] = lambda: _no_limit
) -> StoreResult:
    """Store a batch. When this returns, the batch survives a crash of the process or the machine.

    ``begin`` is called when the write transaction has begun, and returns a function that is called
    between the parts of the batch. If that raises, nothing of the batch is stored.
    """
    result = StoreResult(refused=batch.refused.copy())
    if batch.processes:
        with store.writing() as connection:
            result.check_time = begin()
            for report in batch.processes:
                result.check_time()
                _store_report(connection, report, now, result)
            result.check_time()
    return result


def _store_report(
    connection: Connection, report: ProcessRecords, now: float, result: StoreResult
) -> None:
    run = _store_run(connection, report.run, now)
    rank = report.run.rank
    _store_rank(connection, run, rank, now)
    step_lines = [(n, line) for n, line in report.records if isinstance(line, schema.StepRecord)]
    max_records = chunks.longest(report.run.world_size)
    _store_steps(connection, run, rank, now, step_lines, max_records, result)
    if len(step_lines) == len(report.records):
        return
    heartbeats = [line for _, line in report.records if isinstance(line, schema.HeartbeatRecord)]
    eval_records = [line for _, line in report.records if isinstance(line, schema.EvalRecord)]
    ends = [line for _, line in report.records if isinstance(line, schema.EndRecord)]
    saved = [line for _, line in report.records if isinstance(line, schema.CheckpointRecord)]
    _store_evals(connection, run, rank, eval_records, result)
    checkpoints.write(connection, run, saved, result)
    _store_ends(connection, run, rank, ends, result)
    _store_heartbeats(connection, run, rank, now, heartbeats)


# ---------------------------------------------------------------- the run itself


def _store_run(connection: Connection, record: schema.RunRecord, now: float) -> int:
    of_id = {"of_id": record.run}
    row = connection.execute(RUN_BY_ID, of_id).one_or_none()
    is_new = row is None
    if row is None:
        _create_run(connection, record, now)
        row = connection.execute(RUN_BY_ID, of_id).one()
    description = _merged_description(row, record)
    changed = {name: value for name, value in description.items() if row._mapping[name] != value}
    # the evaluation depends on the description, but for the key of the job
    if row.generation and changed.keys() - {"job"}:
        _rewind(connection, row.key)
    if not row.revision or "config" in changed:
        tags.write(connection, row.key, tags.of_config(record.config))
    if changed:
        connection.execute(update(runs).where(runs.c.key == row.key).values(changed))
    started = min(row.started, record.started or now)
    connection.execute(TOUCH_RUN, {"of_run": row.key, "new_start": started, "now": now})
    if "job" in changed or is_new:
        _resolve_stalls(connection, record.run)
    return int(row.key)


def _resolve_stalls(connection: Connection, run: str) -> None:
    """The attempts before a run did not stall at their ends: their launcher ended them."""
    of_optimizer = (
        progress.c.run == inactivity.c.run,
        progress.c.optimizer == inactivity.c.optimizer,
    )
    last = select(progress.c.step).where(*of_optimizer).scalar_subquery()
    for key in attempts.earlier(connection, run):
        stalled = (inactivity.c.run == key, inactivity.c.after == last)
        columns = (inactivity.c.optimizer, inactivity.c.after)
        since = dict(connection.execute(select(*columns).where(*stalled)).all())
        if since:
            connection.execute(delete(inactivity).where(*stalled))
            _rewind(connection, key, since)
            values = {"revision": runs.c.revision + 1}
            connection.execute(update(runs).where(runs.c.key == key).values(values))


def _create_run(connection: Connection, record: schema.RunRecord, now: float) -> None:
    """Create the run, unless another rank of it does so at the same moment."""
    row = {
        "id": record.run,
        "started": record.started or now,
        "world_size": record.world_size,
        "ended": False,
        "verdict": "incomplete",
        **dict.fromkeys(("steps", "tokens", "revision", "evaluated_revision", "generation"), 0),
        "rewind": False,
        "last_seen": now,
        **_description(record),
    }
    connection.execute(dialects.insert(connection, runs).on_conflict_do_nothing(), row)


def _description(record: schema.RunRecord) -> dict[str, Any]:
    name, project = without_nul(record.name), without_nul(record.project)
    return {
        "name": name,
        "project": project,
        "job": job_key(name, project, record.environment),
        "optimizers": record.optimizers,
        "config": record.config,
        "environment": record.environment,
        "contract": record.contract,
        "declared_scale": record.declared_scale,
    }


def _merged_description(row: Row[Any], record: schema.RunRecord) -> dict[str, Any]:
    """The description of rank 0, with the most optimizers and ranks that any rank sent."""
    description = _description(record) if record.rank == 0 else {}
    description["optimizers"] = max(row.optimizers, record.optimizers, key=len)
    description["world_size"] = max(row.world_size, record.world_size)
    return description


def _rewind(connection: Connection, run: int, since: Mapping[int, int] | None = None) -> None:
    """Have the run evaluated again, from before these steps of optimizers or from the beginning."""
    snapshots.discard(connection, run, since)
    # an evaluation under way has the older generation, so it cannot be committed
    values = {"rewind": True, "generation": runs.c.generation + 1}
    connection.execute(update(runs).where(runs.c.key == run).values(values))


# ---------------------------------------------------------------- ranks and their ends


def _store_rank(connection: Connection, run: int, rank: int, now: float) -> None:
    values = {"of_run": run, "of_rank": rank, "now": now}
    if not connection.execute(TOUCH_RANK, values).rowcount:
        row = {"run": run, "rank": rank, "last_seen": now}
        connection.execute(dialects.insert(connection, ranks).on_conflict_do_nothing(), row)


def _store_ends(
    connection: Connection,
    run: int,
    rank: int,
    records: Sequence[schema.EndRecord],
    result: StoreResult,
) -> None:
    for record in records:
        running = (ranks.c.run == run, ranks.c.rank == rank, ranks.c.ended.is_(None))
        updated = connection.execute(update(ranks).where(*running).values(ended=record.time))
        result.count(updated.rowcount, 1)
    if records:
        count = select(func.count()).where(ranks.c.run == run, ranks.c.ended.is_not(None))
        ended = count.scalar_subquery() >= runs.c.world_size
        connection.execute(update(runs).where(runs.c.key == run).values(ended=ended))


def _store_heartbeats(
    connection: Connection,
    run: int,
    rank: int,
    now: float,
    records: Sequence[schema.HeartbeatRecord],
) -> None:
    for record in records[-1:]:
        of_rank = (ranks.c.run == run, ranks.c.rank == rank)
        values = {"heartbeat": now, "backwards": record.backwards}
        connection.execute(update(ranks).where(*of_rank).values(values))


# ---------------------------------------------------------------- steps


def _store_steps(
    connection: Connection,
    run: int,
    rank: int,
    now: float,
    lines: Sequence[StepLine],
    max_records: int,
    result: StoreResult,
) -> None:
    if not lines:
        return
    evaluated = _progress(connection, run)
    late = {}
    for optimizer, of_optimizer in _by_optimizer(lines).items():
        at = evaluated.get(optimizer, NOT_EVALUATED)
        accepted = _refuse_pruned(of_optimizer, at, result) if at.pruned else of_optimizer
        key = ChunkKey(run, optimizer, rank)
        new = _store_chunk(connection, key, now, accepted, max_records, result)
        if new and optimizer not in evaluated:
            row = {"run": run, "optimizer": optimizer, "step": 0}
            connection.execute(dialects.insert(connection, progress).on_conflict_do_nothing(), row)
        elif new and min(new) <= at.step:
            late[optimizer] = min(new)
    if late:
        _rewind(connection, run, late)


def _by_optimizer(lines: Sequence[StepLine]) -> dict[int, list[StepLine]]:
    grouped: dict[int, list[StepLine]] = {}
    for line in lines:
        grouped.setdefault(line[1].optimizer, []).append(line)
    return grouped


def _store_chunk(
    connection: Connection,
    key: ChunkKey,
    now: float,
    lines: Sequence[StepLine],
    max_records: int,
    result: StoreResult,
) -> Set[int]:
    """Store the records of one optimizer, and return the steps that were not stored before."""
    records = {record.step: record for _, record in reversed(lines)}  # the first of duplicates
    stored = chunks.store(connection, key, now, records, max_records) if records else {}
    new = records.keys() - stored.keys()
    located = [records[step] for step in new if records[step].code]
    if located:
        code_locations.write(connection, key.run, key.rank, located)
    layered = [records[step] for step in new if records[step].layers is not None]
    if layered:
        layers.write(connection, key.run, key.rank, layered)
    before = result.refused.count
    if len(new) < len(lines):
        result.refused.extend(_conflicts(key, lines, records | stored))
    result.count(len(new), len(lines) - (result.refused.count - before))
    return new


def _conflicts(
    key: ChunkKey, lines: Sequence[StepLine], stored: Mapping[int, schema.StepRecord]
) -> Iterator[Refusal]:
    """Refuse steps that are stored with other content: two processes send as the same rank."""
    for number, record in lines:
        if stored[record.step] != record:
            reason = (
                f"step {record.step} of optimizer {key.optimizer} from rank {key.rank} was "
                "stored before with other content: another process uses this run id and rank"
            )
            yield Refusal(number, "$.step", reason)


@dataclass(frozen=True)
class _Progress:
    """The last evaluated step of an optimizer, and the last step whose records may be pruned."""

    step: int
    pruned: int


NOT_EVALUATED = _Progress(0, 0)


def _progress(connection: Connection, run: int) -> dict[int, _Progress]:
    rows = connection.execute(PROGRESS_OF, {"of_run": run})
    return {row.optimizer: _Progress(step=row.step, pruned=row.pruned) for row in rows}


def _refuse_pruned(lines: Sequence[StepLine], at: _Progress, result: StoreResult) -> list[StepLine]:
    pruned = [(number, record) for number, record in lines if record.step <= at.pruned]
    result.refused.extend(Refusal(number, "$.step", _too_late(record)) for number, record in pruned)
    return [line for line in lines if line[1].step > at.pruned]


def _too_late(record: schema.StepRecord) -> str:
    return (
        f"step {record.step} of optimizer {record.optimizer} comes too late: retention removed the "
        "records of these steps, so it can neither be evaluated nor recognised as a duplicate"
    )


# ---------------------------------------------------------------- evaluations


def _store_evals(
    connection: Connection,
    run: int,
    rank: int,
    records: Sequence[schema.EvalRecord],
    result: StoreResult,
) -> None:
    for record in records:
        rows = [
            {
                "run": run,
                "rank": rank,
                "step": record.step,
                "time": record.time,
                "name": without_nul(name),
                "value": _value(value),
            }
            for name, value in record.values.items()
        ]
        statement = dialects.insert(connection, evals).on_conflict_do_nothing()
        new = connection.execute(statement.returning(evals.c.name), rows).all() if rows else []
        result.count(min(len(new), 1), 1)
        if new:
            _rewind_if_late(connection, run, record.step)


def _rewind_if_late(connection: Connection, run: int, step: int) -> None:
    """Evaluate again if the losses before an evaluation are no longer in the evaluator's state."""
    evaluated = _progress(connection, run).get(0, NOT_EVALUATED)
    if step - BEFORE_EVALUATION < evaluated.step - LATE_STEPS:
        _rewind(connection, run, {0: step})


def _value(value: schema.Number) -> float | None:
    number = float(value)
    return None if math.isnan(number) else number
