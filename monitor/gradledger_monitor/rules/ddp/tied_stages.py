"""Weights that two stages of a pipeline hold together, such as the embedding and the head."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, NamedTuple

from gradledger_monitor.ingest.schema import Replica
from gradledger_monitor.model.findings import Outcome
from gradledger_monitor.model.numbers import number
from gradledger_monitor.model.step_facts import StepFacts
from gradledger_monitor.rules.ddp.replicas import SAME, differ_by
from gradledger_monitor.rules.rule import finding
from gradledger_monitor.rules.state import declare

FIX = """\
# after the last backward, on the ranks that hold the tied weights:
dist.all_reduce(shared.weight.grad, group=tied)    # the sum: each stage has a part of it"""


class _Pair(NamedTuple):
    rank: int  # of the earlier stage
    earlier: int  # number of its parameter
    last: int  # number of that of the last stage


class TiedStages:
    """Finds the one parameter of an earlier stage that equals one of the last stage at first.

    Several are layers that all ranks draw from one seed. So may be one at the same position.
    """

    state: ClassVar[Mapping[str, Any]] = declare(pairs=list[list[int]], shape=list[int])

    def __init__(self) -> None:
        self.pairs: list[list[int]] = []
        self.shape: list[int] = []

    def add(self, facts: StepFacts) -> Outcome | None:
        """Compare the stages in one step; the finding if what was equal differs."""
        own = facts.record.replica
        others = {
            rank: replica for rank, replica in facts.run.earlier_stages if replica is not None
        }
        if own is None or not others:
            return None
        if facts.step == 1:
            pairs = [pair for rank, each in others.items() for pair in _equal(rank, each, own)]
            tied = len(pairs) == 1 and pairs[0].earlier != pairs[0].last
            self.pairs = [list(pair) for pair in pairs if tied]
            self.shape = list(own.shapes[own.indices.index(pairs[0].last)]) if tied else []
            return None
        for rank, index, other in self.pairs:
            values = [_value(others.get(rank), index), _value(own, other)]
            measured = [value for value in values if value is not None]
            if len(measured) == 2 and differ_by(measured, SAME):
                return self._apart(rank, index, facts.lowest_rank, other)
        return None

    def _apart(self, rank: int, index: int, last: int, other: int) -> Outcome:
        shape = " x ".join(map(str, self.shape))
        return finding(
            "warning",
            "Equal weights of two pipeline stages become different",
            f"Parameter {index + 1} of rank {rank} and parameter {other + 1} of rank {last} "
            f"({shape}) had equal values at the first step, and differ now: the stages do not "
            "make the same updates. If they are tied weights, such as an embedding and a "
            "head, add up their gradients before the step. If they only start from equal values, "
            "this is intended.",
            FIX,
            ranks=[rank, last],
            parameters=[index + 1, other + 1],
        )


def _equal(rank: int, replica: Replica, own: Replica) -> Iterator[_Pair]:
    """Matrices of equal values other than 0; vectors may be constants."""
    for index, shape, value in zip(
        replica.indices, replica.shapes, replica.fingerprints, strict=False
    ):
        columns = zip(own.indices, own.shapes, own.fingerprints, strict=False)
        for other, shape_of_other, of_other in columns:
            alike = value == of_other and list(shape) == list(shape_of_other)
            if alike and value and len(shape) > 1:
                yield _Pair(rank, index, other)


def _value(replica: Replica | None, index: int) -> float | None:
    if replica is None or index not in replica.indices:
        return None
    position = replica.indices.index(index)
    return number(replica.fingerprints[position])
