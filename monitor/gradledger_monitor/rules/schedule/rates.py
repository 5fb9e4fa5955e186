"""The learning rates of a step."""

from __future__ import annotations

from gradledger_monitor.ingest.schema import Number, StepRecord


def learning_rates(record: StepRecord) -> list[Number]:
    """Those of all parameter groups; empty if none was read."""
    return record.lrs or ([] if record.lr is None else [record.lr])
