"""Step records in the database: a chunk holds records of one rank and one optimizer that arrived in
one batch.

    optimizer 0                                    (a digit: a record of that step)

    rank 0   | 1 2 3 4 | 5 6 |     | 9 10 11 |     chunk: first=9, last=11, record_count=3
    rank 1   | 1 2 3 4 5 |   | 7 9 |               chunk: first=7, last=9,  record_count=2
                             8 was never sent, or comes late

Invariants:

- The chunks of one rank and optimizer do not overlap: between the ``first`` and the ``last`` step
  of a chunk is no step of another one. So ``following`` finds the chunks after a step by their
  ``first`` step, and at most one chunk of each rank begins at or before a step and ends after it
  (``straddling``).
- All records of a chunk have the same time of arrival. A record that arrives late and falls between
  the steps of a chunk splits it: 8 above makes ``| 7 | 8 | 9 |`` of ``| 7 9 |``.
- A step is stored once: the first record wins, and ``store`` returns what was stored before.

Locks: ``store`` and ``remove`` change chunks, and their callers hold the row of the run in ``runs``
(``SELECT ... FOR UPDATE``; on SQLite the only writer). Readers hold no lock; one transaction sees
one moment.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    Row,
    Select,
    and_,
    bindparam,
    delete,
    func,
    insert,
    select,
)

from gradledger_monitor.ingest import schema
from gradledger_monitor.store.packing import Record, pack_records, read_record, unpack_records
from gradledger_monitor.store.tables import chunks, ranks

LONGEST = 512  # records
SIDE_BY_SIDE = 8_192  # records in the chunks of all ranks of a run that begin with one step
READ_AT_ONCE = 64  # chunks

Span = Row[Any, Any, Any]  # first, last, received
Chunk = Row[Any]  # run, optimizer, rank, first, last, record_count, received, records


class ChunkKey(NamedTuple):
    """Which run, optimizer and rank records belong to."""

    run: int
    optimizer: int
    rank: int


def longest(world_size: int) -> int:
    """The most records of a chunk, so that the chunks of all ranks at one step fit in memory."""
    return max(1, min(LONGEST, SIDE_BY_SIDE // world_size))


def _of(columns: Any, run: Any, optimizer: Any) -> tuple[ColumnElement[bool], ColumnElement[bool]]:
    return columns.run == run, columns.optimizer == optimizer


# ---------------------------------------------------------------- writing

# Compiled once: they are executed with every batch.
_OF = (bindparam("of_run", type_=BigInteger), bindparam("of_optimizer", type_=BigInteger))
_OF_RANK = and_(*_of(chunks.c, *_OF), chunks.c.rank == bindparam("of_rank"))
_OVERLAPPING = (
    select(chunks.c.first, chunks.c.last, chunks.c.received)
    .where(_OF_RANK, chunks.c.last >= bindparam("begin"), chunks.c.first <= bindparam("end"))
    .order_by(chunks.c.last)
)
_CHUNK = and_(_OF_RANK, chunks.c.last == bindparam("at"))


def store(
    connection: Connection,
    key: ChunkKey,
    received: float,
    records: Mapping[int, schema.StepRecord],
    max_records: int,
) -> dict[int, schema.StepRecord]:
    """Add records by step, and return the records of these steps that were stored before.

    The caller has locked the run: see above.
    """
    steps = sorted(records)
    key_values = {f"of_{name}": value for name, value in key._asdict().items()}
    span = {**key_values, "begin": steps[0], "end": steps[-1]}
    overlapping = connection.execute(_OVERLAPPING, span).all()
    if not overlapping:
        _insert(connection, key, received, [(step, records[step]) for step in steps], max_records)
        return {}
    stored, pieces = _take_apart(connection, key_values, overlapping, steps)
    new = [step for step in steps if step not in stored]
    pieces += [_Piece(step, len(overlapping), received, records[step]) for step in new]
    _insert_pieces(connection, key, pieces, max_records)
    return stored


class _Piece(NamedTuple):
    """A record to write; without one, the first step of a chunk that stays as it is.

    Pieces are written as chunks: neighbouring ones of one ``source`` make one chunk.
    """

    step: int
    source: int  # number of the chunk that it was in; the number of chunks if it is new
    received: float
    record: Record | None


def _take_apart(
    connection: Connection,
    key_values: Mapping[str, int],
    overlapping: Sequence[Span],
    steps: Sequence[int],
) -> tuple[dict[int, schema.StepRecord], list[_Piece]]:
    """The stored records of these steps; and the pieces of chunks that other steps fall into."""
    stored: dict[int, schema.StepRecord] = {}
    pieces: list[_Piece] = []
    for number, chunk in enumerate(overlapping):
        within = steps[bisect_left(steps, chunk.first) : bisect_right(steps, chunk.last)]
        records = _unpack(connection, {**key_values, "at": chunk.last}, within)
        stored |= {step: read_record(records[step]) for step in within if step in records}
        if records.keys() >= set(within):
            pieces.append(_Piece(chunk.first, number, chunk.received, None))
            continue
        connection.execute(delete(chunks).where(_CHUNK), {**key_values, "at": chunk.last})
        pieces += [_Piece(step, number, chunk.received, one) for step, one in records.items()]
    return stored, pieces


def _insert_pieces(
    connection: Connection, key: ChunkKey, pieces: Iterable[_Piece], max_records: int
) -> None:
    """Write chunks of neighbouring records that arrived together."""
    for _, group in groupby(sorted(pieces, key=attrgetter("step")), attrgetter("source")):
        first, *others = group
        part = [(one.step, one.record) for one in (first, *others) if one.record is not None]
        _insert(connection, key, first.received, part, max_records)


def _unpack(
    connection: Connection, chunk: Mapping[str, int], steps: Sequence[int]
) -> dict[int, msgspec.Raw]:
    if not steps:
        return {}
    return unpack_records(connection.scalars(select(chunks.c.records).where(_CHUNK), chunk).one())


def _insert(
    connection: Connection,
    key: ChunkKey,
    received: float,
    records: Sequence[tuple[int, Record]],
    max_records: int,
) -> None:
    rows = [
        {
            **key._asdict(),
            "first": part[0][0],
            "last": part[-1][0],
            "record_count": len(part),
            "received": received,
            "records": packed,
        }
        for at in range(0, len(records), max_records)
        for part, packed in pack_records(records[at : at + max_records])
    ]
    if rows:
        connection.execute(insert(chunks), rows)


# ---------------------------------------------------------------- reading


def straddling(connection: Connection, run: int, optimizer: int, step: int) -> Sequence[Chunk]:
    """Chunks that begin at or before a step and end after it: at most one of each rank."""
    if step < 1:
        return []
    key = {"of_run": run, "of_optimizer": optimizer, "at": step}
    return connection.execute(_STRADDLING, key).all()


def _straddling() -> Select[Any]:
    later, at = chunks.alias(), bindparam("at", type_=BigInteger)
    after_step = (*_of(later.c, *_OF), later.c.rank == ranks.c.rank, later.c.last > at)
    ends = select(func.min(later.c.last)).where(*after_step).correlate(ranks).scalar_subquery()
    # materialized, because SQLite would otherwise scan all chunks that begin before the step
    last_steps = select(ranks.c.rank, ends.label("last")).where(ranks.c.run == _OF[0])
    of_ranks = last_steps.cte("of_ranks").prefix_with("MATERIALIZED")
    one = and_(chunks.c.rank == of_ranks.c.rank, chunks.c.last == of_ranks.c.last)
    conditions = (*_of(chunks.c, *_OF), chunks.c.first <= at)
    return select(chunks).join(of_ranks, one).where(*conditions)


_STRADDLING = _straddling()  # compiled once


def following(
    connection: Connection, run: int, optimizer: int, after: int, last: int | None = None
) -> Generator[Chunk]:
    """Chunks that begin after ``after`` and not after ``last``, by their first step."""
    conditions = [*_of(chunks.c, run, optimizer), chunks.c.first > after]
    conditions += [chunks.c.first <= last] if last is not None else []
    query = select(chunks).where(*conditions).order_by(chunks.c.first)
    with connection.execute(query, execution_options={"yield_per": READ_AT_ONCE}) as rows:
        yield from rows


def holding(
    connection: Connection, run: int, optimizer: int, after: int, last: int | None = None
) -> Iterator[Chunk]:
    """Chunks that may hold steps after ``after``, up to ``last``, by their first step."""
    yield from straddling(connection, run, optimizer, after)
    yield from following(connection, run, optimizer, after, last)


def next_step(connection: Connection, run: int, optimizer: int, after: int) -> int | None:
    """The first step after ``after`` that any rank sent a record of."""
    conditions = (*_of(chunks.c, run, optimizer), chunks.c.first > after)
    begins = connection.scalar(select(func.min(chunks.c.first)).where(*conditions))
    straddlers = straddling(connection, run, optimizer, after)
    steps = [step for chunk in straddlers for step in unpack_records(chunk.records) if step > after]
    return min([*steps, begins] if begins is not None else steps, default=None)


def last_step(
    connection: Connection, run: int, optimizer: int, until: int | None = None
) -> int | None:
    """The last step, up to ``until``, that any rank sent a record of."""
    conditions = [*_of(chunks.c, run, optimizer), chunks.c.rank == ranks.c.rank]
    conditions += [chunks.c.last <= until] if until is not None else []
    ends = select(func.max(chunks.c.last)).where(*conditions).correlate(ranks).scalar_subquery()
    ended = connection.scalar(select(func.max(ends)).where(ranks.c.run == run))
    straddlers = straddling(connection, run, optimizer, until) if until is not None else []
    steps = [n for chunk in straddlers for n in unpack_records(chunk.records) if n <= (until or 0)]
    return max([*steps, ended] if ended is not None else steps, default=None)


def count(connection: Connection, run: int, optimizer: int, after: int, last: int) -> int:
    """The number of records of steps after ``after``, up to ``last``."""
    count = connection.scalar(
        select(func.sum(chunks.c.record_count)).where(*_within(run, optimizer, after, last))
    )
    cut = _cut(connection, run, optimizer, after, last)
    return (count or 0) + sum(
        after < step <= last for one in cut for step in unpack_records(one.records)
    )


# ---------------------------------------------------------------- removing


def remove(connection: Connection, run: int, optimizer: int, first: int, last: int) -> int:
    """Remove the records of steps from ``first`` to ``last`` inclusive, and return their number.

    The caller has locked the run: see above.
    """
    whole = and_(*_within(run, optimizer, first - 1, last))
    removed = connection.scalars(delete(chunks).where(whole).returning(chunks.c.record_count)).all()
    cut = _cut(connection, run, optimizer, first - 1, last)
    return sum([*removed, *(_part(connection, one, first, last) for one in cut)])


def _part(connection: Connection, chunk: Chunk, first: int, last: int) -> int:
    key = ChunkKey(chunk.run, chunk.optimizer, chunk.rank)
    records = sorted(unpack_records(chunk.records).items())
    before = [one for one in records if one[0] < first]
    behind = [one for one in records if one[0] > last]
    of_rank = and_(*_of(chunks.c, chunk.run, chunk.optimizer), chunks.c.rank == chunk.rank)
    connection.execute(delete(chunks).where(of_rank, chunks.c.last == chunk.last))
    for part in (before, behind):
        _insert(connection, key, chunk.received, part, LONGEST)
    return len(records) - len(before) - len(behind)


# ---------------------------------------------------------------- a span of steps


def _within(run: int, optimizer: int, after: int, last: int) -> list[ColumnElement[bool]]:
    """Chunks whose steps are all after ``after`` and none after ``last``."""
    return [*_of(chunks.c, run, optimizer), chunks.c.first > after, chunks.c.last <= last]


def _cut(
    connection: Connection, run: int, optimizer: int, after: int, last: int
) -> Iterable[Chunk]:
    """Chunks of which only a part of the steps is in that span."""
    ends = [straddling(connection, run, optimizer, step) for step in (after, last)]
    return {(one.rank, one.last): one for end in ends for one in end}.values()
