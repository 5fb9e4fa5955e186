"""The wire format, version 1: what a training process tells the service, one JSON object a line.

A batch is newline-delimited JSON. Its first line is the run record, so that a batch, a spool file
and an export can each be read alone. A fact that was not measured is left out, and ``missing``
names it with the reason: absent is never zero. Floats that JSON cannot say are the strings
``"NaN"``, ``"Infinity"`` and ``"-Infinity"``, as in the JSON mapping of Protocol Buffers.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cache
from typing import Any, ClassVar, Literal

WIRE_VERSION = 1

Reduction = Literal["none", "mean", "sum"]
Op = Literal[
    "clip_norm", "clip_value", "unscale", "scaler_step", "update", "schedule", "new_scaler"
]


@dataclass(eq=False, repr=False)
class Term:
    """One loss node of one micro-batch.

    ``weight`` is the gradient that one counted token's loss receives, the loss scale still
    included: upstream / tokens for a mean, upstream for a sum, the average over tokens for
    a vector, whose smallest and largest absolute values are ``weight_min`` and ``weight_max``.
    """

    kind: str  # the autograd node, e.g. NllLossBackward0
    reduction: Reduction
    tokens: int | None = None  # counted: not ignored, not masked to zero
    size: int | None = None  # all elements of the target, ignored ones too
    rows: int | None = None  # the first dimension of the target
    samples: int | None = None  # behind a flat target, where the graph proves their number
    positions: int | None = None  # elements without the last dimension
    weight: float | None = None
    weight_min: float | None = None
    weight_max: float | None = None
    class_weight: float | None = None  # sum of class weights, when the loss has some
    undivided: bool | None = None  # no division between the root and this term
    coefficient: float | None = None  # product of the constants multiplied on the way there
    head: int | None = None  # cross entropies of one micro-batch that share their last projection
    missing: dict[str, str] = field(default_factory=dict)


@dataclass(eq=False, repr=False)
class MicroBatch:
    """One outermost backward call."""

    number: int = 0  # 1, 2, ... over the life of the process: two optimizers may share one
    loss: float | None = None  # value of the root of backward, loss scale included
    scale: float | None = None  # GradScaler scale multiplied into this backward
    terms: list[Term] = field(default_factory=list)
    collectives: int | None = None  # collectives that ran inside this backward
    backward_ms: float | None = None
    fresh: bool | None = None  # the gradients were absent or zero when it began
    claimed: bool = False  # another optimizer has stepped on this backward already
    wrapper: Literal["sync", "no_sync", "bypassed"] | None = None  # what the wrapper decided
    fingerprint: float | None = None  # of the loss targets; equal data, equal fingerprint
    constant_target: bool | None = None  # targets tell nothing of the data: sampling.says_nothing
    missing: dict[str, str] = field(default_factory=dict)


@dataclass(eq=False, repr=False)
class Event:
    """One call that the loop made inside the window, in order; ``own`` on this optimizer.

    ``factor`` is what the gradients had been multiplied by, between the last backward and it.
    """

    op: Op
    after: int = 0  # micro-batches of the window that had run
    own: bool = True
    limit: float | None = None  # clipping: the largest norm or value that is left
    norm: float | None = None  # clipping by norm: the total norm that it saw
    factor: float | None = None


@dataclass(eq=False, repr=False)
class Scaler:
    """The GradScaler that stepped this optimizer, as it was at the step."""

    ordinal: int  # 1, 2, ...: a new object is a new number
    scale: float | None = None
    tracker: int | None = None  # steps since the last growth or fall


@dataclass(eq=False, repr=False)
class Samples:
    """The same gradient coordinates on this rank after its last backward and at the step."""

    after_backward: list[float] = field(default_factory=list)
    at_step: list[float] = field(default_factory=list)


@dataclass(eq=False, repr=False)
class StepRecord:
    """One optimizer step of one rank.

    ``post_factor`` is what the loop multiplied the gradients with between the last backward and
    the step, clipping and unscaling included; ``grad_scale`` what a fused optimizer divides by.
    """

    type: ClassVar[str] = "step"

    optimizer: int  # 0, 1, ... in the order of their first steps
    step: int  # 1, 2, ... of this optimizer
    time: float  # seconds since the epoch, on the training machine
    micro_batches: list[MicroBatch] = field(default_factory=list)
    norm: float | None = None  # global L2 norm of the gradients that the optimizer got
    post_factor: float | None = None
    events: list[Event] = field(default_factory=list)
    scaler: Scaler | None = None
    grad_scale: float | None = None
    lr: float | None = None  # of the first parameter group
    lrs: list[float] = field(default_factory=list)  # of all groups, when there are several
    group_norms: list[float] = field(default_factory=list)  # by parameter group, likewise
    sharded: bool = False  # each rank holds a part of the gradients: norms are local
    zero_share: float | None = None  # share of sampled coordinates that are exactly zero
    nonfinite: int | None = None  # parameters whose gradient has a non-finite norm
    update_ratio: float | None = None  # |change| / |value| of sampled parameters, now and then
    noise: list[float] = field(default_factory=list)  # sampled |G_small|^2, |G_big|^2
    sync: Literal["none", "averaged", "unknown"] = "none"  # what happened to gradients over ranks
    wrapper: Literal["ddp", "fsdp", "fsdp2"] | None = None
    collectives_after: int | None = None  # collectives between the last backward and the step
    sync_bytes: int | None = None  # gradient bytes that one sync moves, by rank
    outside: int | None = None  # parameters of the optimizer that the wrapper does not hold
    samples: Samples | None = None  # when ranks were combined in a way that was not seen
    parameters: float | None = None  # fingerprint of sampled parameters before the step
    sampler: Literal["random", "sequential"] | None = None  # of the DataLoader iterated last
    batches: int | None = None  # that the one training DataLoader gave since the last step
    batch_size: int | None = None  # samples in each of them
    moved: bool = False  # gradients were kept in other buffers between micro-batches
    repeat: bool = False  # no backward since the last step, and the same gradients are there
    empty: bool = False  # there are no gradients at all at the step
    skipped: bool = False  # the GradScaler found a non-finite gradient and did not step
    half_precision: bool = False  # the loss, and so the weights, carry fp16 or bf16 rounding
    dropped: int = 0  # records that this rank had to drop so far
    next: int | None = None  # the step that is recorded next, where those before it are let pass
    missing: dict[str, str] = field(default_factory=dict)


@dataclass(eq=False, repr=False)
class RunRecord:
    """Who is speaking: the first line of every batch."""

    type: ClassVar[str] = "run"

    run: str  # identity: all ranks of one job say the same
    name: str
    rank: int = 0
    world_size: int = 1
    project: str = "default"
    started: float = 0.0
    optimizers: list[str] = field(default_factory=list)  # class name by index
    config: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)  # versions, host, command
    contract: Literal["token", "sequence", "sample"] | None = None
    declared_scale: float | None = None  # an intended balance other than 1
    v: int = WIRE_VERSION


@dataclass(eq=False, repr=False)
class EvalRecord:
    """Evaluation metrics that the training script reported."""

    type: ClassVar[str] = "eval"

    step: int
    time: float
    values: dict[str, float] = field(default_factory=dict)


@dataclass(eq=False, repr=False)
class CheckpointRecord:
    """The training script saved a checkpoint after an optimizer step."""

    type: ClassVar[str] = "checkpoint"

    step: int
    time: float
    path: str = ""  # where it lies, in the words of the script


@dataclass(eq=False, repr=False)
class HeartbeatRecord:
    """The process lives, while no optimizer step ends: told every few seconds."""

    type: ClassVar[str] = "heartbeat"

    time: float
    since_step: float  # seconds since the last step ended, or since the first backward
    backwards: int = 0  # micro-batches since then


@dataclass(eq=False, repr=False)
class EndRecord:
    """The process ended cleanly; ``steps`` by optimizer is how many it took."""

    type: ClassVar[str] = "end"

    time: float
    steps: list[int] = field(default_factory=list)


Record = RunRecord | StepRecord | EvalRecord | CheckpointRecord | HeartbeatRecord | EndRecord


_to_json = json.JSONEncoder(separators=(",", ":"), allow_nan=False, default=str).encode
_AS_THEY_ARE = (int, str, bool, type(None))
_ALWAYS = ("v",)
_EMPTY: tuple[Any, ...] = ([], {})


def encode(record: Record) -> bytes:
    """One line of the wire, with its newline. Absent and empty fields are left out.

    The type comes first: a decoder that reads it there knows at once what follows.
    """
    kind: Any = type(record)
    said = {"type": record.type, **_said(record, _defaults(kind))}
    return _to_json(said).encode() + b"\n"


def _plain(value: Any) -> Any:
    kind: Any = type(value)
    if kind in _AS_THEY_ARE:
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else _spell(value)
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    return _said(value, _defaults(kind)) if is_dataclass(value) else value


def _said(record: Any, defaults: dict[str, Any]) -> dict[str, Any]:
    """The fields that are worth a word: defaults and empty ones are left out."""
    return {
        name: _plain(value)
        for name, value in vars(record).items()
        if name in _ALWAYS or (value != defaults[name] and value not in _EMPTY)
    }


@cache
def _defaults(kind: Any) -> dict[str, Any]:
    return {f.name: f.default for f in fields(kind)}


def _spell(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"
