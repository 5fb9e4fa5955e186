"""Reads a whole run from a database and stores it in another: everything that cannot be recomputed.

Records are what the training processes sent. Rows are what the service or people added: tags,
acknowledgements, inactivity; and, if records were pruned, what replaces them: facts, buckets,
findings and verdict. Everything else is computed from these.

The evaluation state (``snapshots``) is never exported, because anybody can write an archive. If an
archive has all records, they are evaluated after the import. Otherwise its findings and verdict are
imported as data, and the run is marked.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter, itemgetter
from typing import Any

import msgspec
from sqlalchemy import (
    Connection,
    LargeBinary,
    Row,
    Select,
    Table,
    and_,
    bindparam,
    func,
    select,
    update,
)
from sqlalchemy.types import Double

from gradledger_monitor.ingest import schema
from gradledger_monitor.ingest.decode import Batch, ProcessRecords
from gradledger_monitor.store import dialects
from gradledger_monitor.store.database import Store
from gradledger_monitor.store.evaluation import carried
from gradledger_monitor.store.evaluation.carried import CarriedEvaluation
from gradledger_monitor.store.packing import (
    Packed,
    pack_record,
    read_record,
    unpack_record,
    unpack_records,
)
from gradledger_monitor.store.runs.earlier_names import current_columns, current_table
from gradledger_monitor.store.runs.queries import require_run
from gradledger_monitor.store.steps import chunks
from gradledger_monitor.store.steps.chunks import ChunkKey
from gradledger_monitor.store.steps.ingest import store_batch
from gradledger_monitor.store.tables import (
    acknowledgements,
    buckets,
    checkpoints,
    code_locations,
    evals,
    facts,
    inactivity,
    layers,
    notes,
    progress,
    ranks,
    runs,
    tags,
)

BLOCK = 512  # steps of one rank, before those of the next

# A record of a pruned step, which is never evaluated again, as an archive has it.
RECORDS = "steps"
RECORD = ("optimizer", "step", "rank", "received", "record")
PRUNED = (
    select(progress.c.optimizer, progress.c.pruned)
    .where(progress.c.run == bindparam("of_run"), progress.c.pruned > 0)
    .order_by(progress.c.optimizer)
)

_ADDED = (tags, notes, acknowledgements, inactivity, code_locations, layers)
_TABLES = {t.name: t for t in (*_ADDED, progress, facts, buckets)}
_OLD_STATE = "snapshots"  # of archives of version 1: a pickle, which is not read
_NOT_TABLES = (carried.FINDING, carried.EVALUATION, _OLD_STATE)


Values = dict[str, Any]


@dataclass(frozen=True)
class RunDump:
    """A run as rows and records; both can be read once."""

    run: schema.RunRecord
    rows: Iterator[tuple[str, Values]]
    records: Iterator[tuple[int, schema.Record]]  # each with the rank that sent it


def dump(store: Store, run: str) -> RunDump:
    """Read a run. Raises ``UnknownRun``."""
    with store.reading() as connection:
        row = require_run(connection, run)
    return RunDump(_run_record(row), _rows(store, row.key), _records(store, row.key))


def last_pruned_step(store: Store, run: str) -> int:
    """The last step whose records may be removed; 0 if none is. Raises ``UnknownRun``."""
    with store.reading() as connection:
        of_run = progress.c.run == require_run(connection, run).key
        return connection.scalar(select(func.max(progress.c.pruned)).where(of_run)) or 0


def _run_record(row: Row[Any]) -> schema.RunRecord:
    names = schema.RunRecord.__struct_fields__
    values = {name: row._mapping[name] for name in names if name in row._mapping}
    return schema.RunRecord(run=row.id, **values)


# ---------------------------------------------------------------- rows of the service


def _rows(store: Store, run: int) -> Iterator[tuple[str, Values]]:
    queries: list[tuple[Table, Select[Any]]]
    queries = [(table, select(table).where(table.c.run == run)) for table in _ADDED]
    with store.reading() as connection:
        pruned = select(progress.c.run).where(progress.c.run == run, progress.c.pruned > 0)
        if connection.execute(pruned).first() is not None:
            queries += [(progress, select(progress).where(progress.c.run == run))]
            queries += [(facts, _evaluated_facts(run))]
            queries += [(buckets, select(buckets).where(buckets.c.run == run))]
            yield from carried.dump_rows(connection, run)
        for table, query in queries:
            rows = connection.execute(query, execution_options={"yield_per": BLOCK})
            yield from ((f"{table.name}", _to_json(row._asdict())) for row in rows)
        for optimizer, last in connection.execute(PRUNED, {"of_run": run}).all():
            yield from _pruned_records(connection, run, optimizer, last)


def _evaluated_facts(run: int) -> Select[Any]:
    """The facts of all evaluated steps: an import does not evaluate them again."""
    same = and_(progress.c.run == facts.c.run, progress.c.optimizer == facts.c.optimizer)
    query = select(facts).join(progress, same)
    return query.where(facts.c.run == run, facts.c.step <= progress.c.step)


def _pruned_records(
    connection: Connection, run: int, optimizer: int, last: int
) -> Iterator[tuple[str, Values]]:
    """The records that are left of pruned steps, up to ``last``: a row for each."""
    for chunk in chunks.holding(connection, run, optimizer, 0, last):
        for step, raw in unpack_records(chunk.records).items():
            if step <= last:
                row = (optimizer, step, chunk.rank, chunk.received, pack_record(raw))
                yield RECORDS, _to_json(dict(zip(RECORD, row, strict=True)))


def _to_json(row: Mapping[str, Any]) -> Values:
    values = {f"{name}": value for name, value in row.items() if name != "run"}
    return {name: _json_value(value) for name, value in values.items() if value is not None}


def _json_value(value: Any) -> Any:
    """A value as JSON; what JSON cannot express, as text that ``_column_value`` decodes."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, list | dict):
        return base64.b64encode(msgspec.msgpack.encode(value)).decode()
    return value


def _column_value(column: Any, value: Any) -> Any:
    if value is None:
        return None
    if isinstance(column.type, Double):
        return float(value)
    if isinstance(column.type, Packed):
        return msgspec.msgpack.decode(base64.b64decode(value))
    return base64.b64decode(value) if isinstance(column.type, LargeBinary) else value


# ---------------------------------------------------------------- records of the processes


def _records(store: Store, run: int) -> Iterator[tuple[int, schema.Record]]:
    with store.reading() as connection:
        last = select(progress.c.optimizer, progress.c.pruned).where(progress.c.run == run)
        for optimizer, pruned in connection.execute(last.order_by(progress.c.optimizer)).all():
            yield from _steps(connection, run, optimizer, pruned)
        yield from _eval_records(connection, run)
        yield from _checkpoints(connection, run)
        ends = select(ranks.c.rank, ranks.c.ended).where(ranks.c.run == run)
        for rank, ended in connection.execute(ends.order_by(ranks.c.rank)).all():
            if ended is not None:
                yield rank, schema.EndRecord(time=ended)


def _steps(
    connection: Connection, run: int, optimizer: int, after: int
) -> Iterator[tuple[int, schema.Record]]:
    while (first := chunks.next_step(connection, run, optimizer, after)) is not None:
        before, after = first - 1, first + BLOCK - 1
        holding = list(chunks.holding(connection, run, optimizer, before, after))
        for chunk in sorted(holding, key=attrgetter("rank", "first")):
            for step, raw in unpack_records(chunk.records).items():
                if before < step <= after:
                    yield chunk.rank, read_record(raw)


def _eval_records(connection: Connection, run: int) -> Iterator[tuple[int, schema.Record]]:
    order = (evals.c.rank, evals.c.step, evals.c.time, evals.c.name)
    metrics = connection.execute(select(evals).where(evals.c.run == run).order_by(*order)).all()
    for (rank, step, time), rows in groupby(metrics, lambda row: (row.rank, row.step, row.time)):
        values = {row.name: _number(row.value) for row in rows}
        yield rank, schema.EvalRecord(step=step, time=time, values=values)


def _checkpoints(connection: Connection, run: int) -> Iterator[tuple[int, schema.Record]]:
    c = checkpoints.c
    query = select(c.step, c.time, c.path).where(c.run == run).order_by(c.step, c.path)
    for step, time, path in connection.execute(query):
        yield 0, schema.CheckpointRecord(step=step, time=time, path=path)


def _number(value: float | None) -> schema.Number:
    if value is None or math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return value


# ---------------------------------------------------------------- import


def restore(
    store: Store, run: schema.RunRecord, rows: Iterable[tuple[str, Mapping[str, Any]]], now: float
) -> None:
    """Store a run with its rows. Rows that exist stay as they are.

    Raises ``ValueError`` for a table, column or value that an archive cannot have.
    """
    rows = list(rows)
    carried_evaluation = carried.read(rows)
    store_batch(store, Batch([ProcessRecords(run)]), now)
    grouped = groupby(rows, lambda row: row[0])
    with store.writing() as connection:
        query = select(runs.c.key).where(runs.c.id == run.run).with_for_update()
        key = connection.execute(query).scalar_one()
        new = _is_new(connection, key)
        for name, group in grouped:
            if name not in _NOT_TABLES:
                _insert(connection, key, name, [values for _, values in group], now)
        if new:
            _carry(connection, key, carried_evaluation)


def _is_new(connection: Connection, run: int) -> bool:
    """Whether no step of the run was stored before."""
    return connection.execute(select(progress.c.run).where(progress.c.run == run)).first() is None


def _carry(connection: Connection, run: int, evaluation: CarriedEvaluation | None) -> None:
    """Store the evaluation of pruned steps, which cannot be repeated here, and mark the run."""
    query = select(progress.c.pruned).where(progress.c.run == run, progress.c.pruned > 0)
    pruned = list(connection.scalars(query))
    if pruned and evaluation is not None:
        carried.write(connection, run, evaluation)
    elif pruned:  # an archive of version 1 has neither findings nor verdict
        connection.execute(
            update(progress).where(progress.c.run == run).values(step=progress.c.pruned)
        )
        carried.mark(connection, run, sum(pruned), 0, "incomplete")


def _insert(
    connection: Connection, run: int, name: str, rows: list[Mapping[str, Any]], now: float
) -> None:
    if name == RECORDS:
        _insert_records(connection, run, rows, now)
        return
    table = _TABLES.get(current_table(name))
    if table is None:
        raise ValueError(f"an archive has no rows of {name!r}")
    for row in rows:
        values = current_columns(table.name, row)
        _check(name, values, table.c.keys())
        decoded = {c.name: _column_value(c, values[c.name]) for c in table.c if c.name in values}
        new = dialects.insert(connection, table).values({**decoded, "run": run})
        connection.execute(new.on_conflict_do_nothing())


def _check(name: str, values: Mapping[str, Any], columns: Iterable[str]) -> None:
    if unknown := values.keys() - set(columns):
        raise ValueError(f"{name} has no column {', '.join(sorted(unknown))}")


def _insert_records(
    connection: Connection, run: int, rows: list[Mapping[str, Any]], now: float
) -> None:
    for values in rows:
        _check(RECORDS, values, RECORD)
    key = itemgetter("optimizer", "rank", "received")
    for (optimizer, rank, received), group in groupby(sorted(rows, key=key), key):
        packed = [base64.b64decode(values["record"]) for values in group]
        unpacked = [read_record(unpack_record(blob)) for blob in packed]
        records = {record.step: record for record in unpacked}
        row = {"run": run, "rank": rank, "last_seen": now}
        connection.execute(dialects.insert(connection, ranks).on_conflict_do_nothing(), row)
        chunk_key = ChunkKey(run, optimizer, rank)
        chunks.store(connection, chunk_key, float(received), records, chunks.LONGEST)
