"""Which steps can be judged now, and which still wait for the records of some rank (pure)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gradledger_monitor.ingest import schema


@dataclass
class ArrivedStep:
    """What has come so far of one optimizer step."""

    optimizer: int
    step: int
    received: float  # when its first record came
    records: dict[int, schema.StepRecord]

    def resting(self, before: Mapping[int, int]) -> Mapping[int, int]:
        """Ranks that let steps pass after this one: the step that each records next."""
        told = {rank: record.next for rank, record in self.records.items()}
        if not before and not any(told.values()):
            return before
        return {rank: due for rank, due in {**before, **told}.items() if due is not None}


@dataclass(frozen=True)
class Ready:
    """The steps to judge, in order; since when the next one waits; whether some miss something."""

    steps: Sequence[ArrivedStep]
    waiting_since: float | None
    unsure: bool


@dataclass(frozen=True)
class Patience:
    """When a step is taken although records are missing."""

    world_size: int
    ended: frozenset[int]  # ranks that will send no more
    waited_since: float  # a step that came earlier than this has waited long enough
    resting: Mapping[int, int] = field(default_factory=dict)  # by rank: what it records next


def sort_out(arrived: Sequence[ArrivedStep], after: int, patience: Patience) -> Ready:
    """Split what arrived after one step into what can be judged and what must wait."""
    unsure, resting = False, patience.resting
    for index, step in enumerate(arrived):
        whole = _is_whole(step, after, patience.world_size, resting)
        if not whole and not _is_given_up(step, after, patience):
            return Ready(arrived[:index], step.received, unsure)
        unsure, after, resting = unsure or not whole, step.step, step.resting(resting)
    return Ready(arrived, None, unsure)


def _is_whole(step: ArrivedStep, after: int, world_size: int, resting: Mapping[int, int]) -> bool:
    """Whether nothing is missing up to this step but what ranks let pass."""
    if not resting:
        return len(step.records) >= world_size and step.step == after + 1
    ranks = range(world_size)
    passed = step.step == after + 1 or all(resting.get(r, 0) >= step.step for r in ranks)
    return passed and all(r in step.records or resting.get(r, 0) > step.step for r in ranks)


def _is_given_up(step: ArrivedStep, after: int, patience: Patience) -> bool:
    if step.received <= patience.waited_since:
        return True
    everyone = range(patience.world_size)
    if step.step > after + 1:  # a whole step is missing: any rank might still bring it
        return all(rank in patience.ended for rank in everyone)
    return all(rank in patience.ended for rank in everyone if rank not in step.records)
