"""What goes first when room runs out: the loss terms of a step's micro-batches (pure).

A thin step still says how many micro-batches it had, what became of their gradients and how often
the ranks spoke; that its ledger cannot be drawn up any more, it says with the reason.
"""

from __future__ import annotations

import json
from typing import Any

REASON = "thinned: the service was away for long, and the spool was full"


def thin(line: bytes) -> bytes:
    """The same record with less detail; what is no step, or is thin already, stays as it is."""
    if b'"terms":[' not in line and b'"samples":{' not in line:
        return line
    record = json.loads(line)
    if record.get("type") != "step":
        return line
    for micro_batch in record.get("micro_batches", []):
        _thin_micro_batch(micro_batch)
    if record.pop("samples", None) is not None:
        record.setdefault("missing", {})["samples"] = REASON
    return json.dumps(record, separators=(",", ":")).encode() + b"\n"


def _thin_micro_batch(micro_batch: dict[str, Any]) -> None:
    if micro_batch.pop("terms", None):
        micro_batch.setdefault("missing", {})["terms"] = REASON
