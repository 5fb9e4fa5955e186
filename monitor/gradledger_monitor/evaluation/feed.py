"""Feeds stored steps into the state of a run: one loop for live evaluation and replay (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from gradledger_monitor.evaluation.evaluated_step import QuarantinedStep
from gradledger_monitor.evaluation.run_state import RunState
from gradledger_monitor.evaluation.step_completeness import (
    ArrivedStep,
    ReadySteps,
    WaitConditions,
    split_ready,
)
from gradledger_monitor.model.step_facts import StepFacts


class StepReader(Protocol):
    """Reads the steps of an optimizer after one, up to ``last``, in order: as many as fit in
    memory, and whether there are more."""

    def __call__(
        self, optimizer: int, after: int, last: int | None = None
    ) -> tuple[list[ArrivedStep], bool]: ...


@dataclass(frozen=True)
class RankWait:
    """How long steps wait for the records of all ranks."""

    world_size: int
    ended: frozenset[int]  # ranks that send no more records
    absent: frozenset[int]  # ranks that never sent anything
    timeout: float  # seconds
    absence_timeout: float  # seconds for absent ranks, at most ``timeout``
    now: float  # Unix seconds


@dataclass(frozen=True)
class StepBatch:
    """The next steps of some optimizers that are ready."""

    optimizers: Sequence[int]
    steps: Sequence[ArrivedStep]  # of all of them, in the order of their numbers
    waiting_since: float | None  # when the first step that waits for ranks arrived
    incomplete: set[int]  # optimizers of which some step misses records
    more: bool  # more steps are ready than fit in memory


def next_live_batch(
    state: RunState, optimizers: Iterable[int], read: StepReader, wait: RankWait
) -> StepBatch:
    """The next steps; those that miss records wait for them."""
    ready: dict[int, ReadySteps] = {}
    more = False
    for optimizer in optimizers:
        after = state.position.reached.get(optimizer, 0)
        arrived, left_out = read(optimizer, after)
        ready[optimizer] = _split(state, optimizer, arrived, wait)
        more = more or (left_out and ready[optimizer].waiting_since is None)
    waits = [each.waiting_since for each in ready.values() if each.waiting_since is not None]
    return StepBatch(
        optimizers=list(ready),
        steps=_in_order(each.steps for each in ready.values()),
        waiting_since=min(waits, default=None),
        incomplete={optimizer for optimizer, each in ready.items() if each.incomplete},
        more=more,
    )


def _split(
    state: RunState, optimizer: int, arrived: list[ArrivedStep], wait: RankWait
) -> ReadySteps:
    if arrived:
        first = arrived[0]
        arrived[0] = state.wait_for(first, min(first.received, wait.now))
    conditions = WaitConditions(
        world_size=wait.world_size,
        ended=wait.ended,
        timed_out_before=wait.now - wait.timeout,
        absent=wait.absent,
        absent_before=wait.now - wait.absence_timeout,
        skipping=state.position.skipping.get(optimizer, {}),
    )
    return split_ready(arrived, state.position.reached.get(optimizer, 0), conditions)


def _next_replayed_batch(state: RunState, read: StepReader, last: Mapping[int, int]) -> StepBatch:
    reached = state.position.reached
    behind = [optimizer for optimizer, step in last.items() if reached.get(optimizer, 0) < step]
    batches = {o: read(o, reached.get(o, 0), last[o]) for o in behind}
    return StepBatch(
        optimizers=behind,
        steps=_in_order(steps for steps, _ in batches.values()),
        waiting_since=None,
        incomplete=set(),
        more=any(more for _, more in batches.values()),
    )


def _in_order(steps: Iterable[Sequence[ArrivedStep]]) -> list[ArrivedStep]:
    return sorted((s for some in steps for s in some), key=lambda s: (s.step, s.optimizer))


def feed(state: RunState, batch: StepBatch) -> Iterator[StepFacts | QuarantinedStep | None]:
    """Evaluate a batch, with the stored inactivity between its steps; yields after each step."""
    for step in batch.steps:
        yield state.add_step(step)
    for optimizer in batch.optimizers:
        state.add_stored_inactivity(optimizer)


def replay(state: RunState, read: StepReader, last: Mapping[int, int]) -> Iterator[None]:
    """Evaluate all steps up to the last evaluated one of each optimizer; yields after each step.

    Each of these steps was evaluated before with the records that are stored: none of them waits.
    """
    more = True
    while more:
        batch = _next_replayed_batch(state, read, last)
        for _ in feed(state, batch):
            yield
        more = batch.more
