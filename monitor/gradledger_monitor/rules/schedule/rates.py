"""The learning rates of a step, and whether a plan of them is known."""

from __future__ import annotations

from gradledger_monitor.ingest.schema import Number, StepRecord
from gradledger_monitor.model.findings import Outcome
from gradledger_monitor.rules.rule import not_applicable, not_measured

NO_PLAN = "no plan of an LR scheduler was read"


def learning_rates(record: StepRecord) -> list[Number]:
    """Those of all parameter groups; empty if none was read."""
    return record.lrs or ([] if record.lr is None else [record.lr])


def unplanned(record: StepRecord) -> Outcome | None:
    """Why a step has no LR schedule with a plan; None if it has one."""
    if "schedule" in record.missing:
        return not_measured(record.missing["schedule"])
    if not record.scheduled:
        return not_applicable(NO_PLAN)
    without = record.missing.get("schedule_total")
    return None if without is None else not_applicable(without)
