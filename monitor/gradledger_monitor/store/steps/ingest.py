"""What ingest writes: one transaction a batch, and nothing twice."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, Row, bindparam, func, select, update

from gradledger_monitor.ingest import schema
from gradledger_monitor.ingest.decode import Batch, ProcessRecords, Refusal, Refusals
from gradledger_monitor.model.run_history import BEFORE_EVALUATION, LATE_STEPS
from gradledger_monitor.store import dialects
from gradledger_monitor.store.database import Store
from gradledger_monitor.store.dialects import without_nul
from gradledger_monitor.store.evaluation import snapshots
from gradledger_monitor.store.runs import checkpoints, tags
from gradledger_monitor.store.steps import chunks
from gradledger_monitor.store.steps.chunks import ChunkKey
from gradledger_monitor.store.tables import evals, progress, ranks, runs

CheckTime = Callable[[], None]
StepLine = tuple[int, schema.StepRecord]
# made once, for they run with every batch
RUN_NAMED = select(runs).where(runs.c.id == bindparam("named")).with_for_update()
RUN_HEARD = (
    update(runs)
    .where(runs.c.key == bindparam("of_run"))
    .values(started=bindparam("began"), last_seen=bindparam("now"), revision=runs.c.revision + 1)
)
RANK_HEARD = (
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
    """What became of a batch."""

    stored: int = 0
    duplicates: int = 0
    refused: Refusals = field(default_factory=Refusals)
    check_time: CheckTime = field(default=_no_limit, repr=False)

    def count(self, stored: int, sent: int) -> None:
        """Book lines of which some were already there. Raises where that has taken too long."""
        self.check_time()
        self.stored += stored
        self.duplicates += sent - stored


def store_batch(
    store: Store, batch: Batch, now: float, begin: Callable[[], CheckTime] = lambda: _no_limit
) -> StoreResult:
    """Store a batch; when this returns, it survives the death of the process and the machine.

    ``begin`` is called once the database is ours to write, and gives what is called between the
    parts of a batch. If that raises, nothing of the batch is stored.
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
    of_steps = [(n, line) for n, line in report.records if isinstance(line, schema.StepRecord)]
    most = chunks.longest(report.run.world_size)
    _store_steps(connection, run, rank, now, of_steps, most, result)
    if len(of_steps) == len(report.records):
        return
    of_beats = [line for _, line in report.records if isinstance(line, schema.HeartbeatRecord)]
    of_evals = [line for _, line in report.records if isinstance(line, schema.EvalRecord)]
    of_ends = [line for _, line in report.records if isinstance(line, schema.EndRecord)]
    saved = [line for _, line in report.records if isinstance(line, schema.CheckpointRecord)]
    _store_evals(connection, run, rank, of_evals, result)
    checkpoints.write(connection, run, saved, result)
    _store_ends(connection, run, rank, of_ends, result)
    _store_beats(connection, run, rank, now, of_beats)


# ---------------------------------------------------------------- the run itself


def _store_run(connection: Connection, record: schema.RunRecord, now: float) -> int:
    named = {"named": record.run}
    row = connection.execute(RUN_NAMED, named).one_or_none()
    if row is None:
        _bear(connection, record, now)
        row = connection.execute(RUN_NAMED, named).one()
    told = _heard(row, record)
    news = {name: value for name, value in told.items() if row._mapping[name] != value}
    # what was judged under another description is judged again
    if row.generation and news:
        _rewind(connection, row.key)
    if not row.revision or "config" in news:
        tags.write(connection, row.key, tags.of_config(record.config))
    if news:
        connection.execute(update(runs).where(runs.c.key == row.key).values(news))
    started = min(row.started, record.started or now)
    connection.execute(RUN_HEARD, {"of_run": row.key, "began": started, "now": now})
    return int(row.key)


def _bear(connection: Connection, record: schema.RunRecord, now: float) -> None:
    """Make the run, unless another rank of it comes first at this moment."""
    born = {
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
    connection.execute(dialects.insert(connection, runs).on_conflict_do_nothing(), born)


def _description(record: schema.RunRecord) -> dict[str, Any]:
    return {
        "name": without_nul(record.name),
        "project": without_nul(record.project),
        "optimizers": record.optimizers,
        "config": record.config,
        "environment": record.environment,
        "contract": record.contract,
        "declared_scale": record.declared_scale,
    }


def _heard(row: Row[Any], record: schema.RunRecord) -> dict[str, Any]:
    """How a run is described now that one of its processes spoke."""
    told = _description(record) if record.rank == 0 else {}
    told["optimizers"] = max(row.optimizers, record.optimizers, key=len)
    told["world_size"] = max(row.world_size, record.world_size)
    return told


def _rewind(connection: Connection, run: int, since: Mapping[int, int] | None = None) -> None:
    """Have the judge begin again, before these steps of optimizers or before all."""
    snapshots.discard(connection, run, since)
    # whoever judges at this moment does it from an older generation, and will notice
    told = {"rewind": True, "generation": runs.c.generation + 1}
    connection.execute(update(runs).where(runs.c.key == run).values(told))


# ---------------------------------------------------------------- ranks and their ends


def _store_rank(connection: Connection, run: int, rank: int, now: float) -> None:
    here = {"of_run": run, "of_rank": rank, "now": now}
    if not connection.execute(RANK_HEARD, here).rowcount:
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
        here = (ranks.c.run == run, ranks.c.rank == rank, ranks.c.ended.is_(None))
        done = connection.execute(update(ranks).where(*here).values(ended=record.time))
        result.count(done.rowcount, 1)
    if records:
        over = select(func.count()).where(ranks.c.run == run, ranks.c.ended.is_not(None))
        ended = over.scalar_subquery() >= runs.c.world_size
        connection.execute(update(runs).where(runs.c.key == run).values(ended=ended))


def _store_beats(
    connection: Connection,
    run: int,
    rank: int,
    now: float,
    records: Sequence[schema.HeartbeatRecord],
) -> None:
    for record in records[-1:]:
        here = (ranks.c.run == run, ranks.c.rank == rank)
        told = {"heartbeat": now, "backwards": record.backwards}
        connection.execute(update(ranks).where(*here).values(told))


# ---------------------------------------------------------------- steps


def _store_steps(
    connection: Connection,
    run: int,
    rank: int,
    now: float,
    lines: Sequence[StepLine],
    most: int,
    result: StoreResult,
) -> None:
    if not lines:
        return
    judged = _judged(connection, run)
    late = {}
    for optimizer, said in _by_optimizer(lines).items():
        at = judged.get(optimizer, NOT_JUDGED)
        said = _not_given_up(said, at, result) if at.given_up else said
        new = _store_chunk(connection, ChunkKey(run, optimizer, rank), now, said, most, result)
        if new and optimizer not in judged:
            row = {"run": run, "optimizer": optimizer, "step": 0}
            connection.execute(dialects.insert(connection, progress).on_conflict_do_nothing(), row)
        elif new and min(new) <= at.step:
            late[optimizer] = min(new)
    if late:
        _rewind(connection, run, late)


def _by_optimizer(lines: Sequence[StepLine]) -> dict[int, list[StepLine]]:
    found: dict[int, list[StepLine]] = {}
    for line in lines:
        found.setdefault(line[1].optimizer, []).append(line)
    return found


def _store_chunk(
    connection: Connection,
    place: ChunkKey,
    now: float,
    lines: Sequence[StepLine],
    most: int,
    result: StoreResult,
) -> Set[int]:
    """Store what was said of one optimizer; the steps that were not there before."""
    said = {record.step: record for _, record in reversed(lines)}  # of one said twice, the first
    known = chunks.store(connection, place, now, said, most) if said else {}
    new = said.keys() - known.keys()
    before = result.refused.count
    if len(new) < len(lines):
        result.refused.extend(_conflicts(place, lines, said | known))
    result.count(len(new), len(lines) - (result.refused.count - before))
    return new


def _conflicts(
    place: ChunkKey, lines: Sequence[StepLine], kept: Mapping[int, schema.StepRecord]
) -> Iterator[Refusal]:
    """Steps that are there already with other content: two processes speak as one rank."""
    for number, record in lines:
        if kept[record.step] != record:
            reason = (
                f"step {record.step} of optimizer {place.optimizer} from rank {place.rank} was "
                "stored before with other content: another process uses this run id and rank"
            )
            yield Refusal(number, "$.step", reason)


@dataclass(frozen=True)
class _Progress:
    """How far an optimizer was judged, and up to where its records were given up."""

    step: int
    given_up: int


NOT_JUDGED = _Progress(0, 0)


def _judged(connection: Connection, run: int) -> dict[int, _Progress]:
    rows = connection.execute(PROGRESS_OF, {"of_run": run})
    return {optimizer: _Progress(*at) for optimizer, *at in rows}


def _not_given_up(lines: Sequence[StepLine], at: _Progress, result: StoreResult) -> list[StepLine]:
    gone = [(number, record) for number, record in lines if record.step <= at.given_up]
    result.refused.extend(Refusal(number, "$.step", _given_up(record)) for number, record in gone)
    return [line for line in lines if line[1].step > at.given_up]


def _given_up(record: schema.StepRecord) -> str:
    return (
        f"step {record.step} of optimizer {record.optimizer} comes too late: the records of these "
        "steps were removed to make room, and it can neither be judged nor told from one of them"
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
            _note_evaluation(connection, run, record.step)


def _note_evaluation(connection: Connection, run: int, step: int) -> None:
    """The losses before an evaluation that comes very late are no longer in the judge's memory."""
    judged = _judged(connection, run).get(0, NOT_JUDGED)
    if step - BEFORE_EVALUATION < judged.step - LATE_STEPS:
        _rewind(connection, run, {0: step})


def _value(value: schema.Number) -> float | None:
    number = float(value)
    return None if math.isnan(number) else number
