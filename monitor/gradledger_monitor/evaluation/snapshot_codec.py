"""The evaluation state of a run as versioned data (pure).

A snapshot lets another process go on where this one was. It is data and nothing else: structs with
strict types, encoded as MessagePack and compressed, behind a checksum. Reading one makes no object
but those declared here and by the rules (``rules/state.py``), so that neither damage nor the state
of another version can do more than raise ``SnapshotError``. The records are evaluated again then.

``FORMAT`` is the version of these structs: raise it whenever one of them changes.
"""

from __future__ import annotations

import zlib
from hashlib import sha256
from typing import Any

import msgspec
from msgspec import Struct, field

from gradledger_monitor.model.findings import Lifecycle, Severity, Status
from gradledger_monitor.rules.balance_diagnosis import Pattern
from gradledger_monitor.rules.state import plain

FORMAT = 1
_CHECKSUM = 16  # bytes


class SnapshotError(ValueError):
    """The snapshot is damaged, or of another version."""


class Position(Struct, forbid_unknown_fields=True):
    """How far the evaluation of a run has come; all mappings are by optimizer."""

    reached: dict[int, int] = field(default_factory=dict)  # last step
    heard: dict[int, float] = field(default_factory=dict)  # when that step came, Unix seconds
    late: dict[int, float] = field(default_factory=dict)  # seconds from its end until it came
    silent_after: dict[int, int] = field(default_factory=dict)  # last silence that was taken in
    resting: dict[int, dict[int, int]] = field(default_factory=dict)  # see ``ArrivedStep.resting``
    steps: int = 0  # those that ranks let pass are counted
    tokens: int = 0  # of steps that were judged


class OutcomeState(Struct, frozen=True, forbid_unknown_fields=True):
    """An outcome whose words were put together."""

    status: Status
    reason: str
    severity: Severity
    title: str
    summary: str
    fix: str
    evidence: dict[str, Any]
    failed: bool  # the rule raised an error


class LineState(Struct, frozen=True, forbid_unknown_fields=True):
    """What one rule found on one optimizer."""

    rule: str
    optimizer: int
    outcome: OutcomeState | None
    claim: OutcomeState | None
    first_step: int
    last_step: int
    since_step: int
    steps: int
    lifecycle: Lifecycle
    quiet: int


class RuleState(Struct, frozen=True, forbid_unknown_fields=True):
    """A rule, with the thresholds that its attributes were made with."""

    line: LineState
    thresholds: dict[str, float]
    attributes: dict[str, Any]


class WindowState(Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """What is remembered of an earlier window."""

    micro_batches: int
    balance: float | None
    tokens: float | None
    pattern: Pattern


class OptimizerState(Struct, frozen=True, forbid_unknown_fields=True):
    """The rules of one optimizer, and the windows on which they look back."""

    step: int
    past: list[WindowState]
    rules: list[RuleState]


class EngineState(Struct, frozen=True, forbid_unknown_fields=True):
    """Everything that an engine knows between two steps."""

    optimizers: dict[int, OptimizerState]
    losses: dict[int, float]
    # Findings of an earlier evaluation that no rule of an optimizer goes on with.
    carried: list[LineState]
    carried_to: int  # step up to which they hold


class Snapshot(Struct, frozen=True, forbid_unknown_fields=True):
    """The state of a run at one of its steps."""

    format: int
    evaluator: str  # the code that made it: see ``evaluator_version.py``
    position: Position
    engine: EngineState


class _Head(Struct):
    """What is read first: all formats have it."""

    format: int
    evaluator: str


_encoder = msgspec.msgpack.Encoder(enc_hook=plain)
_head = msgspec.msgpack.Decoder(_Head)
_decoder = msgspec.msgpack.Decoder(Snapshot)


def encode(snapshot: Snapshot) -> bytes:
    """A snapshot as it is stored."""
    body = zlib.compress(_encoder.encode(snapshot), 1)
    return _checksum(body) + body


def decode(blob: bytes, evaluator: str) -> Snapshot:
    """What ``encode`` made, if this code made it. Raises ``SnapshotError``."""
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
