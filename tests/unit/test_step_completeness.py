"""A step is evaluated once all its records have arrived, except those that ranks skip."""

from __future__ import annotations

from gradledger_monitor.evaluation.run_state import RunState
from gradledger_monitor.evaluation.step_completeness import (
    ArrivedStep,
    ReadySteps,
    WaitConditions,
    split_ready,
)
from gradledger_monitor.ingest import schema
from gradledger_monitor.model import step_facts

LONG_AGO, NOW = -1e9, 0.0


def arrived(step: int, **next_of: int | None) -> ArrivedStep:
    """A step of ranks ``r0``, ``r1``, ..., each with the step that it records next, if it skips."""
    records = {
        int(rank[1:]): schema.StepRecord(optimizer=0, step=step, time=1.0, next=due)
        for rank, due in next_of.items()
    }
    return ArrivedStep(0, step, NOW, records)


def split(steps: list[ArrivedStep], ranks: int = 1, after: int = 0) -> ReadySteps:
    """Split by a service without a rank timeout."""
    return split_ready(steps, after, WaitConditions(ranks, frozenset(), LONG_AGO))


def numbers(ready: ReadySteps) -> list[int]:
    """The steps that do not wait."""
    return [step.step for step in ready.steps]


def test_skipped_steps_are_not_waited_for() -> None:
    ready = split([arrived(1, r0=None), arrived(2, r0=9), arrived(9, r0=None)])
    assert numbers(ready) == [1, 2, 9]
    assert not ready.incomplete


def test_a_missing_step_that_was_not_skipped_is_waited_for() -> None:
    assert numbers(split([arrived(1, r0=None), arrived(3, r0=None)])) == [1]
    assert numbers(split([arrived(1, r0=3), arrived(4, r0=None)])) == [1]


def test_a_rank_that_records_earlier_than_announced_is_evaluated() -> None:
    """A loop became slow: after ten seconds the hooks do not wait any longer."""
    assert numbers(split([arrived(1, r0=4097), arrived(65, r0=None)])) == [1, 65]


def test_only_ranks_that_do_not_skip_a_step_are_waited_for() -> None:
    skips = arrived(1, r0=None, r1=3)
    assert numbers(split([skips, arrived(2, r0=None)], ranks=2)) == [1, 2]
    assert numbers(split([skips, arrived(2, r0=None), arrived(3, r0=None)], ranks=2)) == [1, 2]
    both = [skips, arrived(2, r0=None), arrived(3, r0=None, r1=None)]
    assert numbers(split(both, ranks=2)) == [1, 2, 3]


def test_a_gap_that_only_one_rank_announced_is_waited_for() -> None:
    """Rank 0 did not announce that it skips step 2: its record may still arrive."""
    ready = split([arrived(1, r0=None, r1=3), arrived(3, r0=None, r1=None)], ranks=2)
    assert numbers(ready) == [1]


def evaluated(steps: list[ArrivedStep], ranks: int) -> RunState:
    """A run after these steps."""
    state = RunState(step_facts.RunInfo("run", "a run", ranks))
    for step in steps:
        state.add_step(step)
    return state


def test_a_step_that_some_rank_skipped_has_no_result_and_counts_as_a_step() -> None:
    state = evaluated([arrived(1, r0=None, r1=3)], ranks=2)
    assert state.add_step(arrived(2, r0=None)) is None
    assert state.add_step(arrived(3, r0=17, r1=17)) is not None
    assert state.add_step(arrived(17, r0=None, r1=None)) is not None
    assert state.position.reached == {0: 17}
    assert state.position.steps == 17


def test_tokens_are_counted_in_sampled_steps_only() -> None:
    term = schema.Term(kind="nll", reduction="mean", tokens=10, weight=0.1)
    state = evaluated([], ranks=1)
    for step, due in ((1, None), (2, 5), (5, None)):
        record = schema.StepRecord(optimizer=0, step=step, time=1.0, post_factor=1.0, next=due)
        record.micro_batches = [schema.MicroBatch(number=step, terms=[term], fresh=True)]
        state.add_step(ArrivedStep(0, step, NOW, {0: record}))
    assert (state.position.steps, state.position.tokens) == (5, 30)
