"""The wire has two definitions, one that sends and one that accepts: they must not drift apart."""

from __future__ import annotations

import json
from dataclasses import MISSING, fields
from typing import Any

import msgspec
import pytest
from hypothesis import given

from gradledger import records
from gradledger.delivery.encoding import encode
from gradledger_monitor.ingest import schema
from gradledger_monitor.model.numbers import number
from helpers.strategies import step_records

PAIRS = [
    (getattr(records, name), getattr(schema, name))
    for name in (
        "Term",
        "MicroBatch",
        "Event",
        "Scaler",
        "Samples",
        "Layers",
        "StepRecord",
        "RunRecord",
        "EvalRecord",
        "CheckpointRecord",
        "HeartbeatRecord",
        "EndRecord",
    )
]
by_pair = pytest.mark.parametrize(("sent", "accepted"), PAIRS, ids=lambda kind: kind.__name__)


@by_pair
def test_both_definitions_have_the_same_fields(sent: Any, accepted: type[msgspec.Struct]) -> None:
    named = [f.name for f in fields(sent)]
    assert named == list(accepted.__struct_fields__)


@by_pair
def test_what_may_be_left_out_means_the_same_on_both_sides(
    sent: Any, accepted: type[msgspec.Struct]
) -> None:
    ours = {f.name: _default(f) for f in fields(sent)}
    theirs = {f.name: _accepted_default(f) for f in msgspec.structs.fields(accepted)}
    assert ours == theirs


def _default(f: Any) -> Any:
    return f.default_factory() if f.default_factory is not MISSING else _or_required(f, MISSING)


def _accepted_default(f: Any) -> Any:
    if f.default_factory is not msgspec.NODEFAULT:
        return f.default_factory()
    return _or_required(f, msgspec.NODEFAULT)


def _or_required(f: Any, absent: object) -> Any:
    return "required" if f.default is absent else f.default


def test_the_type_in_the_line_is_the_tag_that_is_accepted() -> None:
    for sent, accepted in PAIRS[6:]:
        assert sent.type == accepted.__struct_config__.tag


@given(step_records)
def test_every_step_that_can_be_sent_is_accepted_unchanged(sent: Any) -> None:
    got = schema.decoder.decode(encode(sent))
    assert isinstance(got, schema.StepRecord)
    assert _spelled(sent) == msgspec.to_builtins(got)


def _spelled(sent: Any) -> Any:
    line = json.loads(encode(sent))
    # through the accepting side's own types, so that left-out defaults compare equal
    return msgspec.to_builtins(msgspec.convert(line, schema.StepRecord))


def test_nan_and_infinities_arrive_as_what_they_are() -> None:
    sent = records.StepRecord(0, 1, 1.0, norm=float("inf"), lr=float("nan"), grad_scale=-1e300)
    got = schema.decoder.decode(encode(sent))
    assert isinstance(got, schema.StepRecord)
    assert number(got.norm) == float("inf")
    assert str(number(got.lr)) == "nan"
    assert number(got.grad_scale) == -1e300


def test_an_absent_fact_stays_absent() -> None:
    got = schema.decoder.decode(encode(records.StepRecord(0, 1, 1.0)))
    assert isinstance(got, schema.StepRecord)
    assert got.norm is None and number(got.norm) is None


def test_a_field_of_a_newer_hook_is_ignored() -> None:
    got = schema.decoder.decode(b'{"type":"end","time":1.0,"mood":{"of":["the","day"]}}')
    assert got == schema.EndRecord(time=1.0)


@pytest.mark.parametrize("bad", ["-1", '"NaN"', "1.5", "true", '"7"', str(2**53 + 1)])
def test_a_count_is_a_whole_number_that_is_not_negative(bad: str) -> None:
    line = encode(
        records.StepRecord(
            0,
            1,
            1.0,
            [records.MicroBatch(terms=[records.Term("NllLossBackward0", "mean", 424242)])],
        )
    )
    with pytest.raises(msgspec.ValidationError, match=r"micro_batches\[0\]\.terms\[0\]\.tokens"):
        schema.decoder.decode(line.replace(b"424242", bad.encode()))
