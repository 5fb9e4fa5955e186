"""Which steps can be judged now, and which still wait for the records of some rank (pure)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from msgspec import Struct

from gradledger_monitor import wire


class Arrived(Struct, frozen=True):
    """What has come so far of one optimizer step."""

    optimizer: int
    step: int
    received: float  # when its first record came
    records: dict[int, wire.StepRecord]


@dataclass(frozen=True)
class Ready:
    """The steps to judge, in order; since when the next one waits; whether some miss something."""

    steps: Sequence[Arrived]
    waiting_since: float | None
    unsure: bool


@dataclass(frozen=True)
class Patience:
    """When a step is taken although records are missing."""

    world_size: int
    ended: frozenset[int]  # ranks that will send no more
    waited_since: float  # a step that came earlier than this has waited long enough


def sort_out(arrived: Sequence[Arrived], after: int, patience: Patience) -> Ready:
    """Split what arrived after one step into what can be judged and what must wait."""
    unsure = False
    for index, step in enumerate(arrived):
        whole = len(step.records) >= patience.world_size and step.step == after + 1
        if not whole and not _is_given_up(step, after, patience):
            return Ready(arrived[:index], step.received, unsure)
        unsure, after = unsure or not whole, step.step
    return Ready(arrived, None, unsure)


def _is_given_up(step: Arrived, after: int, patience: Patience) -> bool:
    if step.received <= patience.waited_since:
        return True
    everyone = range(patience.world_size)
    if step.step > after + 1:  # a whole step is missing: any rank might still bring it
        return all(rank in patience.ended for rank in everyone)
    return all(rank in patience.ended for rank in everyone if rank not in step.records)
