"""Step records as they are stored: small, and readable for ever."""

from __future__ import annotations

import zlib
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256

import msgspec
from hypothesis import given

from gradledger import records
from gradledger_monitor.store.packing import DICTIONARY, pack_record, unpack_record
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
    assert repr(unpack_record(pack_record(record))) == repr(record)  # NaN is not itself


def test_what_was_stored_before_there_was_a_dictionary_is_still_read() -> None:
    record = accepted(fair_step(1))
    old = zlib.compress(msgspec.msgpack.encode(record), 1)
    assert unpack_record(old) == record


def test_threads_pack_at_the_same_time() -> None:
    made = [accepted(fair_step(n, tokens=(n, 2 * n, 3))) for n in range(1, 200)]
    with ThreadPoolExecutor(8) as pool:
        packed = list(pool.map(pack_record, made * 20))
        assert list(pool.map(unpack_record, packed)) == made * 20


def test_a_record_takes_less_than_half_of_what_zlib_made_of_it() -> None:
    plain = msgspec.msgpack.encode(record := accepted(fair_step(77, tokens=(5, 12, 19, 26))))
    assert len(pack_record(record)) < len(zlib.compress(plain, 1)) / 2
