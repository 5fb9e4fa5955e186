"""A sample of single parameters before a step, by which the service compares the ranks."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from gradledger.capture import gradient_probe
from gradledger.capture.async_copy import Deferred
from gradledger.records import Replica


@dataclass
class OpenReplica:
    """Coordinates of single parameters before the step; ``counts`` of each."""

    total: int
    indices: list[int]
    shapes: list[list[int]]
    counts: list[int]
    sample: Deferred

    def resolve(self) -> Replica:
        """The wire record, without parameters that have no coordinate that can be read."""
        replica, values = Replica(self.total), iter(self.sample.values())
        for index, shape, count in zip(self.indices, self.shapes, self.counts, strict=True):
            if count:
                replica.indices.append(index)
                replica.shapes.append(shape)
                own = list(itertools.islice(values, count))
                replica.fingerprints.append(gradient_probe.fingerprint(own))
        return replica
