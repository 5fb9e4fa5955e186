"""The evaluation state of a run as versioned data (pure).

A snapshot lets another process continue where this one stopped. It is data only: structs with
strict types, encoded as MessagePack and compressed, behind a checksum. Reading one creates no
objects but those declared here and by the rules (``rules/state.py``), so that neither damage nor
the state of another version can do more than raise ``SnapshotError``. Then the records are
evaluated again.

A snapshot covers everything that the result of later steps depends on and that is not read again
from the database: the position in the steps of each optimizer, what each rule holds between two
steps and its outcomes, the windows that rules look back on, and the losses that evaluations are
compared with. Records, evaluation metrics, recorded inactivity and overrides are read again.

``FORMAT`` is the version of these structs: raise it whenever one of them changes.
"""

from __future__ import annotations

import zlib
from hashlib import sha256
from typing import Any

import msgspec
from msgspec import Struct, field

from gradledger_monitor.model.findings import Lifecycle, Severity, Status
from gradledger_monitor.rules.balance.patterns import Pattern
from gradledger_monitor.rules.state import plain

FORMAT = 25
_CHECKSUM = 16  # bytes


class SnapshotError(ValueError):
    """The snapshot is damaged, or of another version."""


class Position(Struct, forbid_unknown_fields=True):
    """How far the evaluation of a run has come; all mappings are by optimizer."""

    reached: dict[int, int] = field(default_factory=dict)  # last step
    received: dict[int, float] = field(default_factory=dict)  # when it arrived, Unix seconds
    delay: dict[int, float] = field(default_factory=dict)  # seconds from its end to its arrival
    inactive_after: dict[int, int] = field(default_factory=dict)  # step of the last inactivity
    skipping: dict[int, dict[int, int]] = field(default_factory=dict)  # see ``ArrivedStep``
    steps: int = 0  # includes those that ranks skipped
    tokens: int = 0  # of evaluated steps


class OutcomeState(Struct, frozen=True, forbid_unknown_fields=True):
    """An outcome with its text."""

    status: Status
    reason: str
    severity: Severity
    title: str
    summary: str
    fix: str
    evidence: dict[str, Any]
    failed: bool  # the rule raised an error or missed a step
    passed: bool  # the finding was over when it was reported
    doubted: bool  # earlier steps were ok


class RuleOutcomesState(Struct, frozen=True, forbid_unknown_fields=True):
    """The outcomes of one rule on one optimizer."""

    rule: str
    optimizer: int
    strongest: OutcomeState | None
    last_finding: OutcomeState | None
    first_step: int
    last_step: int
    since_step: int
    steps: int
    lifecycle: Lifecycle
    ok_windows: int


class MeasuredWindows(Struct, forbid_unknown_fields=True):
    """In how many windows a rule measured what it evaluates, and in how many it did not."""

    measured: int
    unmeasured: int
    latest: int  # windows since the last measured one, none of which is
    reason: str  # of the last window that was not measured
    clipped: int  # of the unmeasured ones: those that the loop clips


class RuleEvaluationState(Struct, frozen=True, forbid_unknown_fields=True):
    """A rule with its outcomes, and the thresholds that its attributes come from."""

    outcomes: RuleOutcomesState
    windows: MeasuredWindows
    thresholds: dict[str, float]
    attributes: dict[str, Any]


class WindowState(Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """An earlier window, as far as rules look back on it: the fields of ``Closed`` in order.

    ``Closed`` itself cannot be decoded: compiled, it does not state its types.
    """

    micro_batches: int
    balance: float | None
    tokens: float | None
    pattern: Pattern
    scaled_to: float | None
    lr: float | None
    scale: float | None
    samples: int | None
    step: int
    rate: float | None
    loss: float | None
    number: int
    unit: str
    further: tuple[tuple[str, float], ...]
    counts: tuple[tuple[str, str, float, float, float], ...]
    beside: tuple[tuple[str, float, float, bool, float], ...]
    losses: tuple[str, ...]
    coefficient: float | None
    first: int
    resumed: str
    batches: int | None
    scaled_by: float | None
    batch_tokens: int | None


class OptimizerState(Struct, frozen=True, forbid_unknown_fields=True):
    """The rules of one optimizer, and the windows on which they look back."""

    last_window: int
    past: list[WindowState]
    rules: list[RuleEvaluationState]


class Snapshot(Struct, frozen=True, forbid_unknown_fields=True):
    """The state of a run after one of its steps."""

    format: int
    evaluator: str  # the code that wrote it: see ``evaluator_version.py``
    position: Position
    optimizers: dict[int, OptimizerState]
    losses: dict[int, float]
    # Outcomes of an earlier evaluation that no rule of an optimizer continues.
    carried: list[RuleOutcomesState]
    carried_to: int  # the step up to which they hold


class _Head(Struct):
    """The fields that all formats have; they are read first."""

    format: int
    evaluator: str


_encoder = msgspec.msgpack.Encoder(enc_hook=plain)
_head = msgspec.msgpack.Decoder(_Head)
_decoder = msgspec.msgpack.Decoder(Snapshot)


def encode(snapshot: Snapshot) -> bytes:
    """The stored form of a snapshot."""
    body = zlib.compress(_encoder.encode(snapshot), 1)
    return _checksum(body) + body


def decode(blob: bytes, evaluator: str) -> Snapshot:
    """The snapshot that ``encode`` returned, if this code wrote it. Raises ``SnapshotError``."""
    checksum, body = blob[:_CHECKSUM], blob[_CHECKSUM:]
    if checksum != _checksum(body):
        raise SnapshotError("the checksum does not match: the snapshot is damaged")
    try:
        data = zlib.decompress(body)
        head = _head.decode(data)
        if (head.format, head.evaluator) != (FORMAT, evaluator):
            raise SnapshotError("another version wrote the snapshot")
        return _decoder.decode(data)
    except (zlib.error, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise SnapshotError(f"the snapshot is not valid: {error}") from error


def _checksum(body: bytes) -> bytes:
    return sha256(body).digest()[:_CHECKSUM]
