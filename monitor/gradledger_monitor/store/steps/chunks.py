"""Step records as they lie in the database: a chunk is what one rank sent of one optimizer at once.

Chunks of one rank and optimizer never reach into one another: from the first to the last step of
one lies no step of another. So those that come after a step are found by their last step, whoever
sent them; and at most one of each rank begins before a step and ends after it. What comes late and
falls between the steps of a chunk parts it in two: a record's time of arrival stays its own.
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
Found = Row[Any]  # run, optimizer, rank, first, last, held, received, records


class ChunkKey(NamedTuple):
    """Whose records, and of what."""

    run: int
    optimizer: int
    rank: int


def longest(world_size: int) -> int:
    """How many records a chunk holds at most, so that a step of all ranks is read in bounds."""
    return max(1, min(LONGEST, SIDE_BY_SIDE // world_size))


def _of(columns: Any, run: Any, optimizer: Any) -> tuple[ColumnElement[bool], ColumnElement[bool]]:
    return columns.run == run, columns.optimizer == optimizer


# ---------------------------------------------------------------- in

# made once, for they run with every batch
_OF = (bindparam("of_run", type_=BigInteger), bindparam("of_optimizer", type_=BigInteger))
_HERE = and_(*_of(chunks.c, *_OF), chunks.c.rank == bindparam("of_rank"))
_BESIDE = (
    select(chunks.c.first, chunks.c.last, chunks.c.received)
    .where(_HERE, chunks.c.last >= bindparam("begin"), chunks.c.first <= bindparam("end"))
    .order_by(chunks.c.last)
)
_ONE = and_(_HERE, chunks.c.last == bindparam("at"))


def store(
    connection: Connection,
    place: ChunkKey,
    received: float,
    records: Mapping[int, schema.StepRecord],
    most: int,
) -> dict[int, schema.StepRecord]:
    """Add records by step, but for those that are there already: what is there in their place.

    Who calls it keeps all others from the chunks of this run until the transaction ends.
    """
    steps = sorted(records)
    named = {f"of_{name}": value for name, value in place._asdict().items()}
    span = {**named, "begin": steps[0], "end": steps[-1]}
    beside = connection.execute(_BESIDE, span).all()
    if not beside:
        _insert(connection, place, received, [(step, records[step]) for step in steps], most)
        return {}
    known, pieces = _take_apart(connection, named, beside, steps)
    new = [step for step in steps if step not in known]
    pieces += [_Piece(step, len(beside), received, records[step]) for step in new]
    _insert_pieces(connection, place, pieces, most)
    return known


class _Piece(NamedTuple):
    """A record to be written, or where a chunk begins that stays as it is."""

    step: int
    source: int  # which chunk it was in, or that it is new
    received: float
    record: Record | None


def _take_apart(
    connection: Connection, named: Mapping[str, int], beside: Sequence[Span], steps: Sequence[int]
) -> tuple[dict[int, schema.StepRecord], list[_Piece]]:
    """What chunks have of these steps; and the pieces of those that another step falls into."""
    known: dict[int, schema.StepRecord] = {}
    pieces: list[_Piece] = []
    for number, chunk in enumerate(beside):
        within = steps[bisect_left(steps, chunk.first) : bisect_right(steps, chunk.last)]
        there = _open(connection, {**named, "at": chunk.last}, within)
        known |= {step: read_record(there[step]) for step in within if step in there}
        if there.keys() >= set(within):
            pieces.append(_Piece(chunk.first, number, chunk.received, None))
            continue
        connection.execute(delete(chunks).where(_ONE), {**named, "at": chunk.last})
        pieces += [_Piece(step, number, chunk.received, one) for step, one in there.items()]
    return known, pieces


def _insert_pieces(
    connection: Connection, place: ChunkKey, pieces: Iterable[_Piece], most: int
) -> None:
    """Chunks of neighbouring records that came together."""
    for _, group in groupby(sorted(pieces, key=attrgetter("step")), attrgetter("source")):
        first, *others = group
        some = [(one.step, one.record) for one in (first, *others) if one.record is not None]
        _insert(connection, place, first.received, some, most)


def _open(
    connection: Connection, one: Mapping[str, int], wanted: Sequence[int]
) -> dict[int, msgspec.Raw]:
    if not wanted:
        return {}
    return unpack_records(connection.scalars(select(chunks.c.records).where(_ONE), one).one())


def _insert(
    connection: Connection,
    place: ChunkKey,
    received: float,
    records: Sequence[tuple[int, Record]],
    most: int,
) -> None:
    rows = [
        {
            **place._asdict(),
            "first": some[0][0],
            "last": some[-1][0],
            "record_count": len(some),
            "received": received,
            "records": packed,
        }
        for at in range(0, len(records), most)
        for some, packed in pack_records(records[at : at + most])
    ]
    if rows:
        connection.execute(insert(chunks), rows)


# ---------------------------------------------------------------- out


def straddling(connection: Connection, run: int, optimizer: int, step: int) -> Sequence[Found]:
    """Chunks that begin with this step or before and end after it: at most one of each rank."""
    if step < 1:
        return []
    place = {"of_run": run, "of_optimizer": optimizer, "at": step}
    return connection.execute(_STRADDLING, place).all()


def _straddling() -> Select[Any]:
    later, at = chunks.alias(), bindparam("at", type_=BigInteger)
    behind = (*_of(later.c, *_OF), later.c.rank == ranks.c.rank, later.c.last > at)
    ends = select(func.min(later.c.last)).where(*behind).correlate(ranks).scalar_subquery()
    # first found for each rank: SQLite would else look through all chunks that begin before
    next_ones = select(ranks.c.rank, ends.label("last")).where(ranks.c.run == _OF[0])
    of_ranks = next_ones.cte("of_ranks").prefix_with("MATERIALIZED")
    one = and_(chunks.c.rank == of_ranks.c.rank, chunks.c.last == of_ranks.c.last)
    here = (*_of(chunks.c, *_OF), chunks.c.first <= at)
    return select(chunks).join(of_ranks, one).where(*here)


_STRADDLING = _straddling()  # made once, for every look


def following(
    connection: Connection, run: int, optimizer: int, after: int, last: int | None = None
) -> Generator[Found]:
    """Chunks that begin after one step, and not after another, by the step they begin with."""
    here = [*_of(chunks.c, run, optimizer), chunks.c.first > after]
    here += [chunks.c.first <= last] if last is not None else []
    query = select(chunks).where(*here).order_by(chunks.c.first)
    with connection.execute(query, execution_options={"yield_per": READ_AT_ONCE}) as found:
        yield from found


def holding(
    connection: Connection, run: int, optimizer: int, after: int, last: int | None = None
) -> Iterator[Found]:
    """Chunks that may hold steps after one, up to another, by the step they begin with."""
    yield from straddling(connection, run, optimizer, after)
    yield from following(connection, run, optimizer, after, last)


def next_step(connection: Connection, run: int, optimizer: int, after: int) -> int | None:
    """The first step after one of which any rank sent a record."""
    here = (*_of(chunks.c, run, optimizer), chunks.c.first > after)
    begins = connection.scalar(select(func.min(chunks.c.first)).where(*here))
    reached = straddling(connection, run, optimizer, after)
    steps = [step for one in reached for step in unpack_records(one.records) if step > after]
    return min([*steps, begins] if begins is not None else steps, default=None)


def last_step(
    connection: Connection, run: int, optimizer: int, until: int | None = None
) -> int | None:
    """The last step of which any rank sent a record, or the last up to one."""
    here = [*_of(chunks.c, run, optimizer), chunks.c.rank == ranks.c.rank]
    here += [chunks.c.last <= until] if until is not None else []
    ends = select(func.max(chunks.c.last)).where(*here).correlate(ranks).scalar_subquery()
    ended = connection.scalar(select(func.max(ends)).where(ranks.c.run == run))
    reached = straddling(connection, run, optimizer, until) if until is not None else []
    steps = [n for one in reached for n in unpack_records(one.records) if n <= (until or 0)]
    return max([*steps, ended] if ended is not None else steps, default=None)


def count(connection: Connection, run: int, optimizer: int, after: int, last: int) -> int:
    """Records of steps after one, up to another."""
    held = connection.scalar(
        select(func.sum(chunks.c.record_count)).where(*_within(run, optimizer, after, last))
    )
    cut = _cut(connection, run, optimizer, after, last)
    return (held or 0) + sum(
        after < step <= last for one in cut for step in unpack_records(one.records)
    )


# ---------------------------------------------------------------- away


def remove(connection: Connection, run: int, optimizer: int, first: int, last: int) -> int:
    """Remove the records of steps from one to another, ends included; how many they were.

    Who calls it keeps all others from the chunks of this run until the transaction ends.
    """
    whole = and_(*_within(run, optimizer, first - 1, last))
    gone = connection.scalars(delete(chunks).where(whole).returning(chunks.c.record_count)).all()
    cut = _cut(connection, run, optimizer, first - 1, last)
    return sum([*gone, *(_part(connection, one, first, last) for one in cut)])


def _part(connection: Connection, chunk: Found, first: int, last: int) -> int:
    place = ChunkKey(chunk.run, chunk.optimizer, chunk.rank)
    records = sorted(unpack_records(chunk.records).items())
    before = [one for one in records if one[0] < first]
    behind = [one for one in records if one[0] > last]
    mine = and_(*_of(chunks.c, chunk.run, chunk.optimizer), chunks.c.rank == chunk.rank)
    connection.execute(delete(chunks).where(mine, chunks.c.last == chunk.last))
    for some in (before, behind):
        _insert(connection, place, chunk.received, some, LONGEST)
    return len(records) - len(before) - len(behind)


# ---------------------------------------------------------------- a span of steps


def _within(run: int, optimizer: int, after: int, last: int) -> list[ColumnElement[bool]]:
    """Chunks whose steps all come after one, and none after another."""
    return [*_of(chunks.c, run, optimizer), chunks.c.first > after, chunks.c.last <= last]


def _cut(
    connection: Connection, run: int, optimizer: int, after: int, last: int
) -> Iterable[Found]:
    """Chunks that reach into that span, or out of it."""
    ends = [straddling(connection, run, optimizer, step) for step in (after, last)]
    return {(one.rank, one.last): one for end in ends for one in end}.values()
