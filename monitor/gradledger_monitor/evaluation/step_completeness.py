"""Which steps are ready to be evaluated, and which wait for the records of some rank (pure).

A step waits as long as one of its records, or a step before it, may still arrive: rules see the
records of all ranks together and the steps in order, and neither can be repaired once the step is
evaluated. So a step is ready if

- all ranks have sent their record of it, except those that announced that they skip it, and the
  steps before it are evaluated or were skipped by all ranks; or
- all ranks whose records are missing have ended, so that none of them can arrive; or
- all these ranks have ended or never sent anything, and it has waited for the absence timeout; or
- it has waited for the rank timeout. A record that arrives later rewinds the evaluation.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gradledger_monitor.ingest import schema


@dataclass
class ArrivedStep:
    """The records of one optimizer step that have arrived."""

    optimizer: int
    step: int
    received: float  # when its first record arrived
    records: dict[int, schema.StepRecord]

    def skipping(self, before: Mapping[int, int]) -> Mapping[int, int]:
        """The ranks that skip steps after this one, each with the step that it records next.

        ``before`` are those that skipped steps before it.
        """
        announced = {rank: record.next for rank, record in self.records.items()}
        if not before and not any(announced.values()):
            return before
        return {rank: due for rank, due in {**before, **announced}.items() if due is not None}


@dataclass(frozen=True)
class ReadySteps:
    """The steps to evaluate, in order; and whether a later one waits."""

    steps: Sequence[ArrivedStep]
    # When the first step that waits arrived, or would have if it waited for the rank timeout; None
    # if none waits.
    waiting_since: float | None
    incomplete: bool  # records of some of the steps are missing


@dataclass(frozen=True)
class WaitConditions:
    """What decides whether a step waits for missing records."""

    world_size: int
    ended: frozenset[int]  # ranks that send no more records
    timed_out_before: float  # a step that arrived earlier has waited long enough
    skipping: Mapping[int, int] = field(default_factory=dict)  # by rank: the step it records next
    absent: frozenset[int] = frozenset()  # ranks that never sent anything
    absent_before: float = -math.inf  # a step that arrived earlier does not wait for those


def split_ready(
    arrived: Sequence[ArrivedStep], after: int, conditions: WaitConditions
) -> ReadySteps:
    """Split the steps that arrived after one into those that are ready and those that wait."""
    incomplete, skipping = False, conditions.skipping
    for index, step in enumerate(arrived):
        complete = _is_complete(step, after, conditions.world_size, skipping)
        if not complete and not _stops_waiting(step, after, conditions):
            return ReadySteps(arrived[:index], _since(step, after, conditions), incomplete)
        incomplete, after = incomplete or not complete, step.step
        skipping = step.skipping(skipping)
    return ReadySteps(arrived, None, incomplete)


def _since(step: ArrivedStep, after: int, conditions: WaitConditions) -> float:
    """When the step arrived. One that waits for absent ranks only has a shorter time left: it
    counts as having arrived earlier."""
    gone = conditions.ended | conditions.absent
    if _waits_only_for(gone, step, after, conditions.world_size):
        return step.received - (conditions.absent_before - conditions.timed_out_before)
    return step.received


def _is_complete(
    step: ArrivedStep, after: int, world_size: int, skipping: Mapping[int, int]
) -> bool:
    """Whether nothing is missing up to this step but what ranks skip."""
    if not skipping:
        return len(step.records) >= world_size and step.step == after + 1
    ranks = range(world_size)
    follows = step.step == after + 1 or all(skipping.get(r, 0) >= step.step for r in ranks)
    return follows and all(r in step.records or skipping.get(r, 0) > step.step for r in ranks)


def _stops_waiting(step: ArrivedStep, after: int, conditions: WaitConditions) -> bool:
    if step.received <= conditions.timed_out_before:
        return True
    gone = conditions.ended
    if step.received <= conditions.absent_before:
        gone |= conditions.absent
    return _waits_only_for(gone, step, after, conditions.world_size)


def _waits_only_for(gone: frozenset[int], step: ArrivedStep, after: int, world_size: int) -> bool:
    """Whether only these ranks could still send what is missing up to this step."""
    ranks = range(world_size)
    if step.step > after + 1:  # a whole step is missing: any rank might still send it
        return all(rank in gone for rank in ranks)
    return all(rank in gone for rank in ranks if rank not in step.records)
