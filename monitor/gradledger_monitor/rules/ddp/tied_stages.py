"""Weights that two stages of a pipeline hold together, such as the embedding and the head; and
probable copies of an earlier stage, one in each of several pipelines.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, NamedTuple

from gradledger_monitor.ingest.schema import Replica
from gradledger_monitor.model.findings import Doubt, Outcome
from gradledger_monitor.model.numbers import number
from gradledger_monitor.model.ranks.rows import are_equal
from gradledger_monitor.model.step_facts import StepFacts
from gradledger_monitor.rules.ddp.common import names
from gradledger_monitor.rules.ddp.drift_texts import drift
from gradledger_monitor.rules.ddp.replicas import SAME, Replicas, differ_by
from gradledger_monitor.rules.rule import finding
from gradledger_monitor.rules.state import declare

FIX = """\
# after the last backward, on the ranks that hold the tied weights:
dist.all_reduce(shared.weight.grad, group=tied)    # the sum: each stage has a part of it"""


FIX_COPIES = """\
# after the last backward, on the ranks that hold copies of the stage:
for parameter in stage.parameters():
    dist.all_reduce(parameter.grad, group=copies)    # and divide it as those of the others"""

OTHER_FACTORS = (
    "{} hold no loss, and multiply the sum of their gradients by {:.4g}; the ranks with the last "
    "stage multiply theirs by {:.4g}: whether the stages are meant to have different factors is "
    "not known"
)


class _Pair(NamedTuple):
    rank: int  # of the earlier stage
    earlier: int  # number of its parameter
    last: int  # number of that of the last stage


class TiedStages:
    """Finds the one parameter of an earlier stage that equals one of the last stage at first.

    Several are layers that all ranks draw from one seed. So may be one at the same position.
    As many earlier ranks with equal parameters as there are last stages may be copies of one stage,
    or different stages that are drawn from one seed.
    """

    state: ClassVar[Mapping[str, Any]] = declare(
        pairs=list[list[int]], shape=list[int], copies=list[list[int]]
    )

    def __init__(self) -> None:
        self.pairs: list[list[int]] = []
        self.shape: list[int] = []
        self.copies: list[list[int]] = []  # ranks that may hold one stage

    def add(self, facts: StepFacts) -> Outcome | None:
        """Compare the stages in one step; the finding if what was equal differs."""
        return self._compare(facts) or _other_factors(facts)

    def _compare(self, facts: StepFacts) -> Outcome | None:
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
            self.copies = _copies(others, facts.run.world_size)
            return None
        for rank, index, other in self.pairs:
            values = [_value(others.get(rank), index), _value(own, other)]
            measured = [value for value in values if value is not None]
            if len(measured) == 2 and differ_by(measured, SAME):
                return self._apart(rank, index, facts.lowest_rank, other)
        differ = (ranks for ranks in self.copies if _differ([others.get(r) for r in ranks]))
        ranks = next(differ, None) if facts.averaged else None
        return None if ranks is None else _copies_apart(ranks, facts)

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


def _other_factors(facts: StepFacts) -> Outcome | None:
    """The number of copies multiplies the sum in one stage, or divides it, and not in the last."""
    last = None if facts.all_reduce is None else facts.all_reduce.factor
    if not last:
        return None
    size = facts.run.world_size
    other: dict[float, list[int]] = {}
    for rank, factor in facts.run.factors_of_earlier.items():
        if any(are_equal([factor / last, n], facts.tolerance) for n in (size, 1 / size)):
            other.setdefault(factor, []).append(rank)
    if not other:
        return None
    factor, ranks = next(iter(other.items()))
    return Doubt("not_measured", OTHER_FACTORS.format(names(ranks), factor, last))


def _copies(others: Mapping[int, Replica], size: int) -> list[list[int]]:
    """The groups of ``size`` ranks whose parameters are equal; none of a larger group."""
    groups: dict[tuple[Any, ...], list[int]] = {}
    for rank, replica in others.items():
        shapes = tuple(map(tuple, replica.shapes))
        groups.setdefault((shapes, *map(float, replica.fingerprints)), []).append(rank)
    return [ranks for ranks in groups.values() if len(ranks) == size > 1]


def _differ(replicas: list[Replica | None]) -> bool:
    """Whether a parameter differs that all of them have measured."""
    measured = [replica for replica in replicas if replica is not None]
    if len(measured) < len(replicas) or len({tuple(r.indices) for r in measured}) > 1:
        return False
    columns = zip(*(map(number, r.fingerprints) for r in measured), strict=True)
    values = [[v for v in column if v is not None] for column in columns]
    return any(len(each) == len(measured) and differ_by(each, SAME) for each in values)


def _copies_apart(ranks: list[int], facts: StepFacts) -> Outcome:
    """They hold one stage if they have the same position, each in its own pipeline."""
    positions = {facts.run.positions_of_earlier.get(rank) for rank in ranks}
    one_stage = len(positions) == 1 and None not in positions
    last = names(list(facts.records)).lower()
    differ = f"They differ now, while {last}, with the last stage, combine their gradients. "
    if one_stage:
        return finding(
            "warning",
            "Copies of an earlier pipeline stage become different",
            f"{names(ranks)} have the same position in their pipelines, and equal parameters at "
            f"the first step. {differ}Nothing keeps the copies of the earlier stage equal, so the "
            "pipelines train different models. If each pipeline is meant to train its own, this "
            "is intended.",
            FIX_COPIES,
            ranks=ranks[:64],
        )
    return finding(
        "info",
        "Equal weights of ranks without a loss become different",
        f"{names(ranks)} hold no loss, and had equal parameters at the first step. {differ}If they "
        "hold copies of one stage, the pipelines train different models. If they hold different "
        "parts of the model, which only start from equal values, this is intended.",
        FIX_COPIES,
        ranks=ranks[:64],
    )


def last_stage_alone(facts: StepFacts, replicas: Replicas) -> Outcome | None:
    """Ranks of an earlier stage combine their gradients, and those of the last stage do not."""
    earlier = sorted(facts.run.factors_of_earlier)
    if not earlier or not replicas.drifted or facts.missing_ranks:
        return None
    return finding(
        "warning",
        "Copies of the last pipeline stage become different",
        f"{names(list(facts.records))} hold the last stage, and each steps on the gradients that "
        f"it computed. {drift(replicas.drifted, replicas.total)}. {names(earlier)}, with an "
        "earlier stage, combine their gradients. If each pipeline is meant to train its own last "
        "stage, this is intended.",
        FIX_COPIES,
        ranks=list(facts.records)[:64],
        parameters=replicas.listed(replicas.drifted)[:16],
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
