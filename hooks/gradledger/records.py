"""The wire format, version 1: what a training process tells the service, one JSON object a line.

A batch is newline-delimited JSON. Its first line is the run record, so that a batch, a spool file
and an export can each be read alone. A fact that was not measured is left out, and ``missing``
names it with the reason: absent is never zero. Floats that JSON cannot say are the strings
``"NaN"``, ``"Infinity"`` and ``"-Infinity"``, as in the JSON mapping of Protocol Buffers.
"""

from __future__ import annotations

import json
import math
from dataclasses import Field, dataclass, field, fields, is_dataclass
from typing import Any, Literal

WIRE_VERSION = 1

Reduction = Literal["none", "mean", "sum"]


@dataclass
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
    rows: int | None = None  # samples: the first dimension of the target
    positions: int | None = None  # elements without the last dimension
    weight: float | None = None
    weight_min: float | None = None
    weight_max: float | None = None
    class_weight: float | None = None  # sum of class weights, when the loss has some
    undivided: bool | None = None  # no division between the root and this term
    coefficient: float | None = None  # product of the constants multiplied on the way there
    missing: dict[str, str] = field(default_factory=dict)


@dataclass
class MicroBatch:
    """One outermost backward call."""

    loss: float | None = None  # value of the root of backward, loss scale included
    scale: float | None = None  # GradScaler scale multiplied into this backward
    terms: list[Term] = field(default_factory=list)
    collectives: int | None = None  # collectives that ran inside this backward
    backward_ms: float | None = None
    fresh: bool | None = None  # the gradients were absent or zero when it began
    missing: dict[str, str] = field(default_factory=dict)


@dataclass
class Clip:
    """One clipping of the gradients by their global norm."""

    max_norm: float
    norm: float | None = None  # the total norm that it saw
    after: int = 0  # micro-batches of the window that had run


@dataclass
class StepRecord:
    """One optimizer step of one rank.

    ``post_factor`` is what the loop multiplied the gradients with between the last backward and
    the step, clipping and unscaling included; ``grad_scale`` what a fused optimizer divides by.
    """

    optimizer: int  # 0, 1, ... in the order of their first steps
    step: int  # 1, 2, ... of this optimizer
    time: float  # seconds since the epoch, on the training machine
    micro_batches: list[MicroBatch] = field(default_factory=list)
    norm: float | None = None  # global L2 norm of the gradients that the optimizer got
    post_factor: float | None = None
    clips: list[Clip] = field(default_factory=list)
    grad_scale: float | None = None
    lr: float | None = None  # of the first parameter group
    sync: Literal["none", "averaged", "unknown"] = "none"  # what happened to gradients over ranks
    skipped: bool = False  # the GradScaler found a non-finite gradient and did not step
    half_precision: bool = False  # the loss, and so the weights, carry fp16 or bf16 rounding
    dropped: int = 0  # records that this rank had to drop so far
    missing: dict[str, str] = field(default_factory=dict)
    type: Literal["step"] = "step"


@dataclass
class RunRecord:
    """Who is speaking: the first line of every batch."""

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
    type: Literal["run"] = "run"


@dataclass
class EvalRecord:
    """Evaluation metrics that the training script reported."""

    step: int
    time: float
    values: dict[str, float] = field(default_factory=dict)
    type: Literal["eval"] = "eval"


@dataclass
class EndRecord:
    """The process ended cleanly; ``steps`` by optimizer is how many it sent."""

    time: float
    steps: list[int] = field(default_factory=list)
    type: Literal["end"] = "end"


Record = RunRecord | StepRecord | EvalRecord | EndRecord


def encode(record: Record) -> bytes:
    """One line of the wire, with its newline. Absent and empty fields are left out."""
    line = json.dumps(_plain(record), separators=(",", ":"), allow_nan=False, default=str)
    return line.encode() + b"\n"


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else _spell(value)
    if is_dataclass(value):
        return {f.name: _plain(getattr(value, f.name)) for f in fields(value) if _said(value, f)}
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    return value


def _said(record: Any, f: Field[Any]) -> bool:
    """Whether a field is worth a word: defaults and empty fields are left out."""
    value = getattr(record, f.name)
    return f.name in ("type", "v") or (value != f.default and value not in ([], {}))


def _spell(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"
