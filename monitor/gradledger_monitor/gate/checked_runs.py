"""Reads the runs of a check from its store."""

from __future__ import annotations

from gradledger_monitor.gate.result import CheckedRun
from gradledger_monitor.model.code.revision import revision_of
from gradledger_monitor.reports.objectives import recent_objectives
from gradledger_monitor.reports.topology import run_topology
from gradledger_monitor.reports.windows import MOST_RECORDS
from gradledger_monitor.store.database import Store
from gradledger_monitor.store.runs import queries


def checked_run(store: Store, run: queries.RunRow) -> CheckedRun:
    """A run with its evaluation, its objectives and its topology."""
    evaluation = queries.evaluation(store, run.id)
    return CheckedRun(
        name=run.name,
        steps=run.steps,
        ranks=run.world_size,
        evaluation=evaluation,
        objectives=recent_objectives(store, run.id, evaluation.findings, most=MOST_RECORDS),
        topology=run_topology(store, run.id),
        revision=revision_of(run.environment),
    )
