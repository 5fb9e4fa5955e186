"""Observes parameters: whether replicas are still equal, and how far a step moves them.

Ranks that hold replicas start from equal parameters and keep them equal. In the first steps, where
most mistakes show, every parameter is read; later, a few in turn. A fingerprint of each is sent,
and the service compares the ranks: nothing is sent between the ranks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gradledger.capture.gradient_probe import copy_coordinates, copy_each
from gradledger.capture.isolation import is_dtensor
from gradledger.capture.open_records import OpenStep
from gradledger.capture.replica_sample import OpenReplica
from gradledger.observers.base import Observer

if TYPE_CHECKING:
    from gradledger.capture.windows import OptimizerWindow

EVERY = 10  # steps between two measurements
ALL_UNTIL = 8  # steps at which all parameters are read
MOST = 1024  # parameters that are read at one step
IN_TURN = 16  # parameters that are read at later measurements
COORDINATES = 4  # of each


class ParameterUpdates(Observer):
    """Fills ``parameters`` (a fingerprint) and ``update_ratio`` on every tenth step.

    Where several ranks train, it also fills ``replica``: one fingerprint for each parameter.
    """

    facts = ("parameters", "update_ratio", "replica")

    def step_begins(self, step: OpenStep, window: OptimizerWindow) -> None:
        """Sample the parameters before the step."""
        if step.step % EVERY == 1:
            step.parameters_before = copy_coordinates(window.probed_parameters)
        if "sync" in step.fields and step.fields.get("wrapper") in (None, "ddp"):
            self._sample_replica(step, window)

    def step_ends(self, step: OpenStep, window: OptimizerWindow) -> None:
        """Sample the parameters after the step."""
        if step.parameters_before is not None:
            step.parameters_after = copy_coordinates(window.probed_parameters)

    @staticmethod
    def _sample_replica(step: OpenStep, window: OptimizerWindow) -> None:
        if step.step > ALL_UNTIL and step.step % EVERY != 1:
            return
        parameters = window.parameters()
        indices = replica_indices(step.step, len(parameters))
        chosen = [parameters[index] for index in indices]
        if not any(map(is_dtensor, chosen)):  # a shard, not a replica
            sample, counts = copy_each(chosen, COORDINATES)
            if sample is not None:
                shapes = [list(parameter.shape) for parameter in chosen]
                step.replica = OpenReplica(len(parameters), indices, shapes, counts, sample)


def replica_indices(step: int, total: int) -> list[int]:
    """The parameters whose fingerprints are sent at a step, the same ones on all ranks."""
    if step <= ALL_UNTIL:
        count = min(total, MOST)
        return [index * total // count for index in range(count)]
    begin = step // EVERY * IN_TURN
    return sorted({(begin + index) % total for index in range(min(total, IN_TURN))})
