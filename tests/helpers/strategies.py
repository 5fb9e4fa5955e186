"""Hypothesis strategies for everything that the hooks may send."""

from __future__ import annotations

import typing

from hypothesis import strategies as st

from gradledger import records
from gradledger_monitor.ingest import schema

counts = st.integers(0, 2**53)
seconds = st.floats(0, 1e12)
numbers = st.floats()
maybe_number = st.none() | numbers
maybe_count = st.none() | counts
maybe_flag = st.none() | st.booleans()
words = st.text(min_size=1, max_size=20)
missing = st.dictionaries(words, st.text(max_size=50), max_size=2)
samples_of = st.lists(numbers, max_size=4)

terms = st.builds(
    records.Term,
    kind=words | st.sampled_from(["NllLossBackward0", "MeanBackward0", "MseLossBackward0"]),
    reduction=st.sampled_from(typing.get_args(records.Reduction)),
    tokens=maybe_count,
    size=maybe_count,
    rows=maybe_count,
    positions=maybe_count,
    classes=maybe_count,
    weight=maybe_number,
    weight_min=maybe_number,
    weight_max=maybe_number,
    weight_size=maybe_number,
    class_weight=maybe_number,
    undivided=maybe_flag,
    divisors=samples_of,
    coefficient=maybe_number,
    elements=maybe_count,
    element_weight=maybe_number,
    of=st.none() | words,
    nonlinear=st.booleans(),
    function=maybe_count,
    function_weight=maybe_number,
    penalty=st.booleans(),
    compares=st.booleans(),
    averaged=maybe_count,
    again=st.booleans(),
    part=counts,
    parts=counts,
    beside_parts=counts,
    missing=missing,
)
micro_batches = st.builds(
    records.MicroBatch,
    number=counts,
    loss=maybe_number,
    scale=maybe_number,
    terms=st.lists(terms, max_size=2),
    collectives=maybe_count,
    backward_ms=st.none() | seconds,
    fresh=maybe_flag,
    claimed=st.booleans(),
    parameters_changed=st.booleans(),
    call=maybe_count,
    wrapper=st.none() | st.sampled_from(["sync", "no_sync", "bypassed"]),
    task=maybe_count,
    elsewhere=counts,
    relayed=st.booleans(),
    rescaled=st.none() | st.floats(),
    fingerprint=maybe_number,
    constant_target=maybe_flag,
    consecutive_target=st.booleans(),
    missing=missing,
)
events = st.builds(
    records.Event,
    op=st.sampled_from(typing.get_args(records.Op)),
    after=st.integers(0, 4) | counts,
    own=st.booleans(),
    limit=maybe_number,
    norm=maybe_number,
    factor=maybe_number,
    metric=maybe_number,
)
scalers = st.builds(
    records.Scaler,
    ordinal=counts,
    scale=maybe_number,
    tracker=maybe_count,
    loaded=st.booleans(),
    unused=st.booleans(),
)
step_records = st.builds(
    records.StepRecord,
    optimizer=st.integers(0, schema.MAX_OPTIMIZERS - 1),
    step=st.integers(1, 2**53),
    time=seconds,
    micro_batches=st.lists(micro_batches, max_size=3),
    norm=maybe_number,
    post_factor=maybe_number,
    events=st.lists(events, max_size=4),
    scaler=st.none() | scalers,
    replaced=st.none()
    | st.builds(
        records.Replaced,
        optimizer=counts,
        steps=counts,
        scaler=st.none() | scalers,
        in_a_row=counts,
        horizon=maybe_number,
    ),
    resumed=st.none()
    | st.builds(
        records.Resumed,
        loaded=st.booleans(),
        steps=maybe_count,
        lr=maybe_number,
        under_schedule=st.booleans(),
        moved=st.booleans(),
        schedule=maybe_count,
        empty=maybe_number,
    ),
    grad_scale=maybe_number,
    lr=maybe_number,
    lrs=samples_of,
    group_norms=samples_of,
    sharded=st.booleans(),
    zero_share=maybe_number,
    nonfinite=maybe_count,
    update_ratio=maybe_number,
    step_size=maybe_number,
    noise=st.lists(numbers, max_size=2),
    sync=st.sampled_from(["none", "averaged", "unknown"]),
    wrapper=st.none() | st.sampled_from(["ddp", "fsdp", "fsdp2"]),
    collectives_after=maybe_count,
    data_group=st.lists(st.integers(0, 9), max_size=4),
    tensor_group=st.lists(st.integers(0, 9), max_size=4),
    pipeline=st.lists(st.integers(0, 9), max_size=4),
    sync_bytes=maybe_count,
    outside=maybe_count,
    samples=st.none()
    | st.builds(
        records.Samples, after_backward=samples_of, at_step=samples_of, with_cleared=samples_of
    ),
    before_hooks=st.booleans(),
    exchanges=st.booleans(),
    own_sums=st.booleans(),
    models=st.none() | st.builds(records.Samples, after_backward=samples_of, at_step=samples_of),
    averaging=st.booleans(),
    join=st.sampled_from([None, "all", "active"]),
    parameters=maybe_number,
    sampler=st.none() | st.sampled_from(["random", "sequential"]),
    batches=maybe_count,
    batch_size=maybe_count,
    loader_batches=st.lists(counts, max_size=3),
    moved=st.booleans(),
    repeat=st.booleans(),
    empty=st.booleans(),
    skipped=st.booleans(),
    maximises=st.booleans(),
    half_precision=st.booleans(),
    by_hand=st.booleans(),
    dropped=counts,
    missing=missing,
)
