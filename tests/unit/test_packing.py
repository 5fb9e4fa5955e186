"""Step records as they are stored: small, and readable for ever."""

from __future__ import annotations

import zlib
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256

import msgspec
from hypothesis import given
from hypothesis.strategies import lists

from gradledger import records
from gradledger_monitor.store.packing import (
    DICTIONARY,
    LARGEST,
    pack_record,
    pack_records,
    read_record,
    unpack_record,
    unpack_records,
)
from helpers.batches import fair_step
from helpers.facts import accepted
from helpers.strategies import step_records

# What databases out there were written with. A new dictionary is a new file: see packing.py.
KNOWN = "66181712dd86f6ccc8b0c35ef0a413e8267e7608548c520c2e32dd85e1b31661"


def test_the_dictionary_is_the_one_that_databases_were_written_with() -> None:
    assert sha256(DICTIONARY.read_bytes()).hexdigest() == KNOWN


@given(step_records)
def test_whatever_is_accepted_comes_back(sent: records.StepRecord) -> None:
    record = accepted(sent)
    back = read_record(unpack_record(pack_record(record)))
    assert repr(back) == repr(record)  # NaN is not itself


def test_what_was_stored_before_there_was_a_dictionary_is_still_read() -> None:
    record = accepted(fair_step(1))
    old = zlib.compress(msgspec.msgpack.encode(record), 1)
    assert read_record(unpack_record(old)) == record


def test_threads_pack_at_the_same_time() -> None:
    originals = [accepted(fair_step(n, tokens=(n, 2 * n, 3))) for n in range(1, 200)]
    with ThreadPoolExecutor(8) as pool:
        packed = list(pool.map(pack_record, originals * 20))
        assert [read_record(raw) for raw in pool.map(unpack_record, packed)] == originals * 20


def test_a_record_takes_less_than_half_of_what_zlib_made_of_it() -> None:
    plain = msgspec.msgpack.encode(record := accepted(fair_step(77, tokens=(5, 12, 19, 26))))
    assert len(pack_record(record)) < len(zlib.compress(plain, 1)) / 2


@given(lists(step_records, min_size=1, max_size=5))
def test_records_packed_together_come_back_by_step(sent: list[records.StepRecord]) -> None:
    wanted = [(10 * place, accepted(one)) for place, one in enumerate(sent)]
    ((_, packed),) = pack_records(wanted)
    back = [(step, read_record(raw)) for step, raw in unpack_records(packed).items()]
    assert repr(back) == repr(wanted)
    ((_, again),) = pack_records(list(unpack_records(packed).items()))  # without reading them
    assert unpack_records(again) == unpack_records(packed)


def test_huge_records_are_packed_in_several_parts() -> None:
    huge = [(n, accepted(fair_step(n, tokens=(n,) * 3_000))) for n in range(1, 8)]
    parts = [(some, unpack_records(packed)) for some, packed in pack_records(huge)]
    assert [one for some, _ in parts for one in some] == huge
    assert [dict(some).keys() for some, _ in parts] == [back.keys() for _, back in parts]
    assert all(len(some) == 1 or sum(map(len, back.values())) <= LARGEST for some, back in parts)
    assert len(parts) > 1


def test_records_packed_together_take_less_than_half_of_what_each_takes() -> None:
    originals = [(n, accepted(fair_step(n, tokens=(n, 2 * n, 3)))) for n in range(1, 257)]
    alone = sum(len(pack_record(record)) for _, record in originals)
    assert sum(len(packed) for _, packed in pack_records(originals)) < alone / 2
