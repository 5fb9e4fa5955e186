"""The ranks of a run: which sent nothing, and what those that did were doing at the last step."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from gradledger_monitor.evaluation.quarantine import CannotEvaluate, evaluating
from gradledger_monitor.model.ranks.topology import Topology, topology
from gradledger_monitor.model.step_facts import RecordsByRank, RunInfo, StepFacts, merge
from gradledger_monitor.reports.windows import at_step, steps_in_memory
from gradledger_monitor.rules.rule import Window
from gradledger_monitor.store.database import Store
from gradledger_monitor.store.runs import queries
from gradledger_monitor.store.steps.records import recent_records

STEPS = 4  # whose targets are compared; of many ranks, 2


@dataclass(frozen=True)
class RunTopology:
    """The topology at a step; ``never_sent`` are ranks from which no record arrived at all."""

    optimizer: int
    step: int
    never_sent: list[int]
    topology: Topology


def run_topology(
    store: Store, run: str, optimizer: int = 0, windows: Sequence[Window] = ()
) -> RunTopology | None:
    """The topology at the last evaluated step; None for one rank, or without any step.

    ``windows``: those that were read already; one of this step is not evaluated again.
    """
    info = queries.run_info(store, run)
    step = queries.last_evaluated_steps(store, run).get(optimizer)
    if info.world_size == 1 or step is None:
        return None
    steps = max(2, steps_in_memory(info, STEPS))
    by_step = recent_records(store, run, optimizer, step, steps)
    records = by_step.pop(step, None)
    if not records:
        return None
    window = at_step(windows, optimizer, step)
    facts = window.facts if window else _facts(info, optimizer, step, records)
    objectives = facts.objectives if facts else []
    return RunTopology(
        optimizer=optimizer,
        step=step,
        never_sent=queries.ranks_without_records(store, run),
        # with the loss whose ledger is shown first
        topology=topology(
            info.world_size, records, objectives[0].kind if objectives else None, by_step.values()
        ),
    )


def _facts(info: RunInfo, optimizer: int, step: int, records: RecordsByRank) -> StepFacts | None:
    with suppress(CannotEvaluate), evaluating(step):
        return merge(info, optimizer, step, records)
    return None
