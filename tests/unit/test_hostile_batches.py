"""The decoder of records against whatever comes: it answers for every line and never fails."""

from __future__ import annotations

import random

import msgspec
from hypothesis import example, given
from hypothesis import strategies as st

from gradledger.delivery.encoding import encode
from gradledger.records import RunRecord, StepRecord
from gradledger_monitor.ingest import schema
from helpers.accounting import accounted
from helpers.strategies import step_records

HEAD = encode(RunRecord("r", "r", 0, 1))

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner),
    max_leaves=12,
)
types = st.sampled_from(["run", "step", "eval", "heartbeat", "end", "rumour", ""])
fields = st.sampled_from(sorted({*schema.StepRecord.__struct_fields__, *RunRecord.__annotations__}))


@given(st.binary(max_size=2_000))
def test_any_bytes(body: bytes) -> None:
    accounted(body)
    accounted(HEAD + body)


@given(st.dictionaries(fields, json_values, max_size=6), types)
@example({"missing": {"": 1}}, "step")
def test_any_json_under_the_right_names(members: dict[str, object], kind: str) -> None:
    accounted(HEAD + msgspec.json.encode({**members, "type": kind}))


@given(step_records, st.randoms(use_true_random=False), st.integers(1, 8))
def test_a_record_with_some_bytes_changed(
    record: StepRecord, chance: random.Random, changes: int
) -> None:
    body = bytearray(HEAD + encode(record))
    for _ in range(changes):
        position = chance.randrange(len(body))
        match chance.randrange(3):
            case 0:
                body[position] = chance.randrange(256)
            case 1:
                del body[position]
            case _:
                body[position:position] = chance.choice(
                    [b"1e999", b"-", b"NaN", b'"', b"[", b"\n", b"{}"]
                )
    accounted(bytes(body))


@given(st.integers(1, 3_000), st.sampled_from([b"[", b'{"x":', b'[{"config":']))
def test_any_depth(depth: int, opening: bytes) -> None:
    accounted(HEAD + b'{"type":"end","time":1,"x":' + opening * depth)
    accounted(b'{"type":"run","run":"r","name":"r","config":' + opening * depth + b"1")
