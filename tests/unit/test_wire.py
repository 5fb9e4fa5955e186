"""The wire has two definitions, one that sends and one that accepts: they must not drift apart."""

from __future__ import annotations

import json
import typing
from dataclasses import MISSING, fields
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradledger import records
from gradledger_monitor import wire

PAIRS = [
    (getattr(records, name), getattr(wire, name))
    for name in (
        "Term",
        "MicroBatch",
        "Clip",
        "StepRecord",
        "RunRecord",
        "EvalRecord",
        "EndRecord",
    )
]
by_pair = pytest.mark.parametrize(("sent", "accepted"), PAIRS, ids=lambda kind: kind.__name__)

counts = st.integers(0, 2**53)
seconds = st.floats(0, 1e12)
numbers = st.floats()
maybe_number = st.none() | numbers
maybe_count = st.none() | counts
words = st.text(min_size=1, max_size=20)
missing = st.dictionaries(words, st.text(max_size=50), max_size=2)

terms = st.builds(
    records.Term,
    kind=words,
    reduction=st.sampled_from(typing.get_args(records.Reduction)),
    tokens=maybe_count,
    size=maybe_count,
    rows=maybe_count,
    positions=maybe_count,
    weight=maybe_number,
    weight_min=maybe_number,
    weight_max=maybe_number,
    class_weight=maybe_number,
    undivided=st.none() | st.booleans(),
    coefficient=maybe_number,
    missing=missing,
)
micro_batches = st.builds(
    records.MicroBatch,
    loss=maybe_number,
    scale=maybe_number,
    terms=st.lists(terms, max_size=2),
    collectives=maybe_count,
    backward_ms=st.none() | seconds,
    missing=missing,
)
step_records = st.builds(
    records.StepRecord,
    optimizer=st.integers(0, wire.MAX_OPTIMIZERS - 1),
    step=st.integers(1, 2**53),
    time=seconds,
    micro_batches=st.lists(micro_batches, max_size=3),
    norm=maybe_number,
    post_factor=maybe_number,
    clips=st.lists(
        st.builds(records.Clip, max_norm=numbers, norm=maybe_number, after=counts), max_size=2
    ),
    grad_scale=maybe_number,
    lr=maybe_number,
    sync=st.sampled_from(["none", "averaged", "unknown"]),
    half_precision=st.booleans(),
    dropped=counts,
    missing=missing,
)


@by_pair
def test_both_definitions_have_the_same_fields(sent: Any, accepted: type[msgspec.Struct]) -> None:
    named = [f.name for f in fields(sent) if f.name != "type"]
    assert named == list(accepted.__struct_fields__)


@by_pair
def test_what_may_be_left_out_means_the_same_on_both_sides(
    sent: Any, accepted: type[msgspec.Struct]
) -> None:
    ours = {f.name: _default(f) for f in fields(sent) if f.name != "type"}
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
    for sent, accepted in PAIRS[3:]:
        tag = next(f.default for f in fields(sent) if f.name == "type")
        assert tag == accepted.__struct_config__.tag


@given(step_records)
def test_every_step_that_can_be_sent_is_accepted_and_says_the_same(sent: Any) -> None:
    got = wire.decoder.decode(records.encode(sent))
    assert isinstance(got, wire.StepRecord)
    assert _spelled(sent) == msgspec.to_builtins(got)


def _spelled(sent: Any) -> Any:
    line = json.loads(records.encode(sent))
    # through the accepting side's own types, so that left-out defaults compare equal
    return msgspec.to_builtins(msgspec.convert(line, wire.StepRecord))


def test_nan_and_infinities_arrive_as_what_they_are() -> None:
    sent = records.StepRecord(0, 1, 1.0, norm=float("inf"), lr=float("nan"), grad_scale=-1e300)
    got = wire.decoder.decode(records.encode(sent))
    assert isinstance(got, wire.StepRecord)
    assert wire.number(got.norm) == float("inf")
    assert str(wire.number(got.lr)) == "nan"
    assert wire.number(got.grad_scale) == -1e300


def test_an_absent_fact_stays_absent() -> None:
    got = wire.decoder.decode(records.encode(records.StepRecord(0, 1, 1.0)))
    assert isinstance(got, wire.StepRecord)
    assert got.norm is None and wire.number(got.norm) is None


def test_a_field_of_a_newer_hook_is_ignored() -> None:
    got = wire.decoder.decode(b'{"type":"end","time":1.0,"mood":{"of":["the","day"]}}')
    assert got == wire.EndRecord(time=1.0)


@pytest.mark.parametrize("bad", ["-1", '"NaN"', "1.5", "true", '"7"', str(2**53 + 1)])
def test_a_count_is_a_whole_number_that_is_not_negative(bad: str) -> None:
    line = records.encode(
        records.StepRecord(
            0,
            1,
            1.0,
            [records.MicroBatch(terms=[records.Term("NllLossBackward0", "mean", 424242)])],
        )
    )
    with pytest.raises(msgspec.ValidationError, match=r"micro_batches\[0\]\.terms\[0\]\.tokens"):
        wire.decoder.decode(line.replace(b"424242", bad.encode()))
