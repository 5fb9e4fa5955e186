"""Samples of parameters before a step, by which the service compares the ranks."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from gradledger.capture import gradient_probe
from gradledger.capture.async_copy import Deferred
from gradledger.records import Replica, Samples


@dataclass
class OpenReplica:
    """Coordinates of single parameters before the step; ``counts`` of each."""

    total: int
    indices: list[int]
    shapes: list[list[int]]
    counts: list[int]
    sample: Deferred
    names: list[str]  # of each, or none

    def resolve(self) -> Replica:
        """The wire record, without parameters that have no coordinate that can be read."""
        replica, values = Replica(self.total), iter(self.sample.values())
        replica.names = [*itertools.compress(self.names, self.counts)]
        for index, shape, count in zip(self.indices, self.shapes, self.counts, strict=True):
            if count:
                replica.indices.append(index)
                replica.shapes.append(shape)
                own = list(itertools.islice(values, count))
                replica.fingerprints.append(gradient_probe.fingerprint(own))
        return replica


@dataclass
class OpenModels:
    """Parameters as a step left them, and now; of an outer optimizer, also its gradient.

    The step is the last one, or that of the inner optimizer, whose model the outer one holds.
    """

    left: Deferred
    now: Deferred
    gradient: Deferred | None = None

    def resolve(self) -> Samples | None:
        """Both, if they differ; of an outer optimizer, the model's change, and its gradient."""
        left, now = self.left.values(), self.now.values()
        if len(left) != len(now):
            return None
        if self.gradient is None:
            return None if left == now else gradient_probe.sent_samples(left, now)
        gradient = self.gradient.values()
        if len(gradient) != len(now):
            return None
        change = [own - inner for own, inner in zip(now, left, strict=True)]
        return gradient_probe.sent_samples(change, gradient)

    def differ_at_once(self) -> bool:
        """Whether both can be read without waiting, and differ."""
        sampled = (self.left, self.now)
        at_once = not any(each.has_no_copy or not each.ready for each in sampled)
        return at_once and self.left.values() != self.now.values()

    def deferred(self) -> Iterator[Deferred]:
        """The values that are read later."""
        yield from (self.left, self.now)
        yield from () if self.gradient is None else [self.gradient]
