"""The records that the service accepts: those of ``gradledger.records``, with their bounds.

There are two definitions on purpose: the hooks must not depend on a validator, and hooks of up to
a year ago must work with a newer service. ``tests/unit/test_wire.py`` compares the two. Unknown
fields are ignored, so that newer hooks work with an older service.

The structs of steps have no cycles and are hidden from Python's garbage collector (``gc=False``),
which would otherwise take most of the time of decoding.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

Count = Annotated[int, Meta(ge=0, le=2**53)]
Ordinal = Annotated[int, Meta(ge=1, le=2**53)]
Name = Annotated[str, Meta(min_length=1, max_length=256)]
Reason = Annotated[str, Meta(max_length=1024)]
NonFinite = Literal["NaN", "Infinity", "-Infinity"]
Number = float | NonFinite
Missing = dict[Name, Reason]
Shape = Annotated[list[Count], Meta(max_length=64)]

# part of URLs and file names, so neither "." nor ".."
RUN_ID = r"^(?!\.{1,2}\Z)[A-Za-z0-9._-]+\Z"
MAX_RANKS = 65_536
MAX_OPTIMIZERS = 4_096


CodeRole = Literal[
    "backward",
    "scaled_backward",
    "idle_backward",
    "loss",
    "step",
    "zero_grad",
    "clip_norm",
    "clip_value",
    "unscale",
    "scaler_step",
    "update",
    "schedule",
    "new_scaler",
    "load_state",
    "batches",
    "new_schedule",
]


class CodeLocation(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A call or a statement in the script's code, seen in the first windows of an optimizer."""

    role: CodeRole
    file: Annotated[str, Meta(min_length=1, max_length=1_024)]
    line: Ordinal
    end_line: Ordinal | None = None
    column: Ordinal | None = None
    end_column: Ordinal | None = None
    function: Annotated[str, Meta(max_length=256)] = ""
    via: Annotated[str, Meta(max_length=64)] = ""
    first: Ordinal | None = None
    source: Annotated[list[Annotated[str, Meta(max_length=1_024)]], Meta(max_length=64)] = []


class Term(Struct, gc=False, kw_only=True, omit_defaults=True):
    """One loss node of one micro-batch."""

    kind: Name
    reduction: Literal["none", "mean", "sum"]
    tokens: Count | None = None
    size: Count | None = None
    rows: Count | None = None
    classes: Count | None = None
    samples: Count | None = None
    positions: Count | None = None
    weight: Number | None = None
    weight_min: Number | None = None
    weight_max: Number | None = None
    weight_size: Number | None = None
    class_weight: Number | None = None
    valid: Count | None = None
    ignored: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    smoothed: Count | None = None
    undivided: bool | None = None
    divisors: Annotated[list[Number], Meta(max_length=64)] = []
    coefficient: Number | None = None
    outer_coefficient: Number | None = None
    head: Count | None = None
    logits: Count | None = None
    module: Name | None = None
    elements: Count | None = None
    element_weight: Number | None = None
    of: Name | None = None
    nonlinear: bool = False
    function: Count | None = None
    function_weight: Number | None = None
    penalty: bool = False
    compares: bool = False
    averaged: Count | None = None
    again: bool = False
    part: Count | None = None
    parts: Count | None = None
    beside_parts: Count = 0
    input: Name | None = None
    inferred: Name | None = None
    missing: Missing = {}


class Samples(Struct, gc=False, kw_only=True, omit_defaults=True):
    """Values of the same gradient coordinates after a backward, and later."""

    after_backward: Annotated[list[Number], Meta(max_length=1_024)] = []
    at_step: Annotated[list[Number], Meta(max_length=1_024)] = []
    with_cleared: Annotated[list[Number], Meta(max_length=1_024)] = []


class MicroBatch(Struct, gc=False, kw_only=True, omit_defaults=True):
    """One outermost backward call."""

    number: Count = 0
    loss: Number | None = None
    scale: Number | None = None
    scaler: Count = 1
    terms: Annotated[list[Term], Meta(max_length=4_096)] = []
    collectives: Count | None = None
    backward_ms: Annotated[float, Meta(ge=0)] | None = None
    fresh: bool | None = None
    claimed: bool = False
    parameters_changed: bool = False
    call: Count | None = None
    wrapper: Literal["sync", "no_sync", "bypassed"] | None = None
    task: Count | None = None
    elsewhere: int = 0
    relayed: bool = False
    reaches_input: bool = False
    rescaled: Number | None = None
    sums: Annotated[list[Number], Meta(max_length=4_096)] = []
    sum_scales: Annotated[list[Number], Meta(max_length=4_096)] = []
    fingerprint: Number | None = None
    constant_target: bool | None = None
    consecutive_target: bool = False
    samples: Samples | None = None
    without_gradient: Number | None = None
    sample_norm: Number | None = None
    missing: Missing = {}


class Event(Struct, gc=False, kw_only=True, omit_defaults=True):
    """One call that the training loop made in the window."""

    op: Literal[
        "clip_norm",
        "clip_value",
        "unscale",
        "scaler_step",
        "update",
        "schedule",
        "new_scaler",
        "load_state",
    ]
    after: Count = 0
    own: bool = True
    scaler: Count = 1
    limit: Number | None = None
    norm: Number | None = None
    factor: Number | None = None
    rest: Number | None = None
    metric: Number | None = None
    mode: Literal["min", "max"] | None = None


class Scaler(Struct, gc=False, kw_only=True, omit_defaults=True):
    """The GradScaler that stepped this optimizer."""

    ordinal: Count
    scale: Number | None = None
    tracker: Count | None = None
    loaded: bool = False
    unused: bool = False


class Replaced(Struct, gc=False, kw_only=True, omit_defaults=True):
    """An earlier optimizer of the same parameters."""

    optimizer: Count
    steps: Count
    scaler: Scaler | None = None
    in_a_row: Count = 0
    horizon: Number | None = None
    lr: Number | None = None


class Resumed(Struct, gc=False, kw_only=True, omit_defaults=True):
    """What the script loaded before the first step of an optimizer."""

    loaded: bool = False
    trained: bool = False
    steps: Count | None = None
    lr: Number | None = None
    under_schedule: bool = False
    moved: bool = False
    schedule: Count | None = None
    empty: Number | None = None


class Replica(Struct, gc=False, kw_only=True, omit_defaults=True):
    """Fingerprints of single parameters before the step."""

    total: Count = 0
    indices: Annotated[list[Count], Meta(max_length=1_024)] = []
    fingerprints: Annotated[list[Number], Meta(max_length=1_024)] = []
    shapes: Annotated[list[Shape], Meta(max_length=1_024)] = []
    names: Annotated[list[Name], Meta(max_length=1_024)] = []


MAX_LAYERS = 512


class Layers(Struct, gc=False, kw_only=True, omit_defaults=True):
    """Gradients, parameters and updates of the layers that are trained, on this rank."""

    parameters: Count = 0
    frozen: Count = 0
    names: Annotated[list[Name], Meta(max_length=MAX_LAYERS)] = []
    sizes: Annotated[list[Annotated[float, Meta(ge=0)]], Meta(max_length=MAX_LAYERS)] = []
    gradient: Annotated[list[Number | None], Meta(max_length=MAX_LAYERS)] = []
    parameter: Annotated[list[Number], Meta(max_length=MAX_LAYERS)] = []
    update: Annotated[list[Number | None], Meta(max_length=MAX_LAYERS)] = []
    earlier: Annotated[list[Count], Meta(max_length=MAX_LAYERS)] = []
    observed: Count = 0
    untrained: Annotated[list[Count], Meta(max_length=MAX_LAYERS)] = []
    frozen_zeros: Annotated[dict[Name, Name], Meta(max_length=MAX_LAYERS)] = {}
    decay: Annotated[list[Annotated[float, Meta(ge=0)]], Meta(max_length=MAX_LAYERS)] = []
    decoupled: bool = False
    rounded: Count = 0
    unmoved: Count = 0
    single: bool = False
    training: Count = 0
    evaluating: Annotated[list[Name], Meta(max_length=64)] = []


class Unheld(Struct, gc=False, kw_only=True, omit_defaults=True):
    """Parameters that have gradients, and that no optimizer holds."""

    count: Count = 0
    elements: Annotated[float, Meta(ge=0)] = 0.0
    names: Annotated[list[Name], Meta(max_length=64)] = []
    listed: Annotated[list[Count], Meta(max_length=64)] = []
    unfrozen: Annotated[list[Count], Meta(max_length=64)] = []
    apart: Annotated[list[Count], Meta(max_length=64)] = []


class LeftOpen(Struct, gc=False, omit_defaults=True):
    """What the process left unfinished: backwards that no step followed, or an LR schedule."""

    backwards: Count = 0
    zeroed: Count = 0
    nonfinite: Count = 0
    scaled: Count = 0
    norms: Count = 0
    nonfinite_norms: Count = 0
    planned: Count = 0
    scheduled: Count = 0
    trained: Count = 0
    inputs: Count = 0
    again: bool = False
    warmup: Count = 0
    resumed: Count = 0
    idle: Annotated[str, Meta(max_length=256)] = ""
    names: Annotated[list[Name], Meta(max_length=64)] = []
    stopped: bool = False


class StepRecord(Struct, gc=False, kw_only=True, omit_defaults=True, tag="step"):
    """One optimizer step of one rank."""

    optimizer: Annotated[int, Meta(ge=0, lt=MAX_OPTIMIZERS)]
    step: Ordinal
    time: Annotated[float, Meta(ge=0)]
    micro_batches: Annotated[list[MicroBatch], Meta(max_length=65_536)] = []
    norm: Number | None = None
    post_factor: Number | None = None
    changed: bool = False
    events: Annotated[list[Event], Meta(max_length=4_096)] = []
    scaler: Scaler | None = None
    replaced: Replaced | None = None
    resumed: Resumed | None = None
    grad_scale: Number | None = None
    lr: Number | None = None
    lrs: Annotated[list[Number], Meta(max_length=65_536)] = []
    rate_moves: Count = 0
    scheduled: Count | None = None
    schedule_total: Count | None = None
    elsewhere: Count | None = None
    rate_elsewhere: Number | None = None
    group_norms: Annotated[list[Number], Meta(max_length=65_536)] = []
    sharded: bool = False
    zero_share: Number | None = None
    nonfinite: Count | None = None
    update_ratio: Number | None = None
    noise: Annotated[list[Number], Meta(max_length=2)] = []
    sync: Literal["none", "averaged", "unknown"] = "none"
    wrapper: Literal["ddp", "fsdp", "fsdp2"] | None = None
    data_group: Annotated[list[Count], Meta(max_length=MAX_RANKS)] = []
    tensor_group: Annotated[list[Count], Meta(max_length=MAX_RANKS)] = []
    pipeline: Annotated[list[Count], Meta(max_length=MAX_RANKS)] = []
    divisors: Annotated[list[Number], Meta(max_length=64)] = []
    join: Literal["all", "active"] | None = None
    collectives_after: Count | None = None
    reduced_share: Number | None = None
    unwaited_share: Number | None = None
    sync_bytes: Count | None = None
    outside: Count | None = None
    excluded: Count | None = None
    samples: Samples | None = None
    before_hooks: bool = False
    exchanges: bool = False
    own_sums: bool = False
    shares: Samples | None = None
    own_shares: bool = False
    shared_model: Number | None = None
    models: Samples | None = None
    averaging: bool = False
    parameters: Number | None = None
    replica: Replica | None = None
    layers: Layers | None = None
    unheld: Unheld | None = None
    sampler: Literal["random", "sequential"] | None = None
    batches: Count | None = None
    batch_size: Count | None = None
    loader_batches: list[Count] = []
    moved: bool = False
    repeat: bool = False
    empty: bool = False
    trainable: Count | None = None
    skipped: bool = False
    closure: bool = False
    maximises: bool = False
    accumulating: bool = False
    alone: bool = False
    stepped_each: Count | None = None
    left_open: LeftOpen | None = None
    half_precision: bool = False
    by_hand: bool = False
    step_size: Number | None = None
    dropped: Count = 0
    next: Ordinal | None = None
    code: Annotated[list[CodeLocation], Meta(max_length=256)] = []
    missing: Missing = {}


class RunRecord(Struct, kw_only=True, omit_defaults=True, tag="run"):
    """The run and the rank of the process that sends: the first line of every batch."""

    run: Annotated[str, Meta(min_length=1, max_length=128, pattern=RUN_ID)]
    name: Name
    rank: Annotated[int, Meta(ge=0, lt=MAX_RANKS)] = 0
    world_size: Annotated[int, Meta(ge=1, le=MAX_RANKS)] = 1
    project: Name = "default"
    started: Annotated[float, Meta(ge=0)] = 0.0
    optimizers: Annotated[list[Name], Meta(max_length=MAX_OPTIMIZERS)] = []
    config: dict[str, Any] = {}
    environment: dict[str, str] = {}
    contract: Literal["token", "sequence", "sample"] | None = None
    declared_scale: float | None = None
    v: Literal[1] = 1


class EvalRecord(Struct, kw_only=True, omit_defaults=True, tag="eval"):
    """Evaluation metrics that the training script reported."""

    step: Count
    time: Annotated[float, Meta(ge=0)]
    values: dict[Name, Number] = {}


class CheckpointRecord(Struct, kw_only=True, omit_defaults=True, tag="checkpoint"):
    """The training script saved a checkpoint after an optimizer step."""

    step: Count
    time: Annotated[float, Meta(ge=0)]
    path: Annotated[str, Meta(max_length=4_096)] = ""


class HeartbeatRecord(Struct, kw_only=True, omit_defaults=True, tag="heartbeat"):
    """The process is alive, while no optimizer step ends."""

    time: Annotated[float, Meta(ge=0)]
    since_step: Annotated[float, Meta(ge=0)]
    backwards: Count = 0


class EndRecord(Struct, kw_only=True, omit_defaults=True, tag="end"):
    """The process ended cleanly."""

    time: Annotated[float, Meta(ge=0)]
    steps: list[Count] = []


Record = RunRecord | StepRecord | EvalRecord | CheckpointRecord | HeartbeatRecord | EndRecord

decoder = msgspec.json.Decoder(Record)
