"""Reduces step records when space runs out: removes loss terms and gradient samples (pure).

A thinned record still has the number of micro-batches, the events on gradients and the number of
collectives. ``missing`` names the removed facts, without which no ledger can be computed.
"""

from __future__ import annotations

import json
from typing import Any

REASON = "thinned: the service was unreachable for long and the spool was full"


def thin(line: bytes) -> bytes:
    """The record with less detail. Other records, and thinned steps, are returned unchanged."""
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
