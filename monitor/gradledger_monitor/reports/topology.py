"""The ranks of a run: which sent nothing, and what those that did were doing at the last step."""

from __future__ import annotations

from dataclasses import dataclass

from gradledger_monitor.model.ranks.topology import Topology, topology
from gradledger_monitor.reports.windows import RecentSteps, at_step, recent_steps, steps_in_memory
from gradledger_monitor.store.database import Store
from gradledger_monitor.store.runs import queries
from gradledger_monitor.store.steps.records import recent_records

EARLIER = 3  # steps whose targets are compared with those of the last one; of many ranks, 1


@dataclass(frozen=True)
class RunTopology:
    """The topology at a step; ``never_sent`` are ranks from which no record arrived at all.

    ``behind`` are the others that sent no record of this step, each with its last one before; None
    where no record of it is stored, because retention removed them.
    """

    optimizer: int
    step: int
    never_sent: list[int]
    behind: dict[int, int | None]
    topology: Topology

    @property
    def absent(self) -> dict[int, int | None]:
        """The ranks without a record of this step, with their last one before; 0 for none."""
        return {**dict.fromkeys(self.never_sent, 0), **self.behind}


def run_topology(
    store: Store, run: str, optimizer: int = 0, recent: RecentSteps | None = None
) -> RunTopology | None:
    """The topology at the last evaluated step; None for one rank, or without any step.

    ``recent``: the steps up to it, if they were read already.
    """
    info = queries.run_info(store, run)
    step = queries.last_evaluated_steps(store, run).get(optimizer)
    if info.world_size == 1 or step is None:
        return None
    recent = recent or recent_steps(store, run, optimizer, step, most=1)
    if step not in recent.records:
        return None
    window = at_step(recent.windows, optimizer, step)
    objectives = window.facts.objectives if window else []
    never_sent = queries.ranks_without_records(store, run)
    silent = sorted(set(range(info.world_size)) - set(recent.records[step]) - set(never_sent))
    return RunTopology(
        optimizer=optimizer,
        step=step,
        never_sent=never_sent,
        behind=queries.last_steps_of_ranks(store, run, optimizer, step, silent) if silent else {},
        # with the loss whose ledger is shown first
        topology=topology(
            info.world_size,
            recent.records[step],
            objectives[0].kind if objectives else None,
            lambda: recent_records(
                store, run, optimizer, step - 1, steps_in_memory(info, EARLIER)
            ).values(),
        ),
    )
