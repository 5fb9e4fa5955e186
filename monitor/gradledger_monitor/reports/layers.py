"""The layers of a run by step, of all ranks together."""

from __future__ import annotations

from gradledger_monitor.model.layers.combined import Layer, combined
from gradledger_monitor.store.database import Store
from gradledger_monitor.store.runs import queries
from gradledger_monitor.store.steps import layers


def layers_by_step(store: Store, run: str, optimizer: int = 0) -> list[tuple[int, list[Layer]]]:
    """The layers at each measured step. Of shards, only steps with the shards of all ranks.

    Raises ``UnknownRun``.
    """
    by_step, sharded = layers.of_run(store, run, optimizer)
    ranks = min(queries.run_info(store, run).world_size, layers.MOST_RANKS) if sharded else 1
    return [
        (step, combined(of_step, sharded))
        for step, of_step in sorted(by_step.items())
        if len(of_step) >= ranks
    ]
