"""When a step is judged: once all its records are here, but for those that ranks let pass."""

from __future__ import annotations

from gradledger_monitor.evaluation.engine import Engine
from gradledger_monitor.evaluation.run_state import RunState
from gradledger_monitor.evaluation.step_completeness import ArrivedStep, Patience, Ready, sort_out
from gradledger_monitor.ingest import schema
from gradledger_monitor.model import step_facts

LONG_AGO, NOW = -1e9, 0.0


def arrived(step: int, **following: int | None) -> ArrivedStep:
    """A step of ranks ``r0``, ``r1``, ..., each with the step that it records next, if it rests."""
    records = {
        int(rank[1:]): schema.StepRecord(optimizer=0, step=step, time=1.0, next=due)
        for rank, due in following.items()
    }
    return ArrivedStep(0, step, NOW, records)


def sorted_out(steps: list[ArrivedStep], ranks: int = 1, after: int = 0) -> Ready:
    """By a service that would wait for ever."""
    return sort_out(steps, after, Patience(ranks, frozenset(), LONG_AGO))


def taken(ready: Ready) -> list[int]:
    """The steps that need not wait."""
    return [step.step for step in ready.steps]


def test_steps_that_were_let_pass_are_not_waited_for() -> None:
    ready = sorted_out([arrived(1, r0=None), arrived(2, r0=9), arrived(9, r0=None)])
    assert taken(ready) == [1, 2, 9]
    assert not ready.unsure


def test_a_step_that_is_missing_without_having_been_let_pass_is_waited_for() -> None:
    assert taken(sorted_out([arrived(1, r0=None), arrived(3, r0=None)])) == [1]
    assert taken(sorted_out([arrived(1, r0=3), arrived(4, r0=None)])) == [1]


def test_whoever_looks_again_earlier_than_it_said_is_heard() -> None:
    """A loop became slow: after ten seconds the hooks do not wait any longer."""
    assert taken(sorted_out([arrived(1, r0=4097), arrived(65, r0=None)])) == [1, 65]


def test_a_rank_that_lets_a_step_pass_is_not_waited_for_and_one_that_does_not_is() -> None:
    rests = arrived(1, r0=None, r1=3)
    assert taken(sorted_out([rests, arrived(2, r0=None)], ranks=2)) == [1, 2]
    assert taken(sorted_out([rests, arrived(2, r0=None), arrived(3, r0=None)], ranks=2)) == [1, 2]
    both = [rests, arrived(2, r0=None), arrived(3, r0=None, r1=None)]
    assert taken(sorted_out(both, ranks=2)) == [1, 2, 3]


def test_a_gap_of_which_only_one_rank_has_told_is_waited_for() -> None:
    """Rank 0 did not say that it would let step 2 pass: its record may still come."""
    ready = sorted_out([arrived(1, r0=None, r1=3), arrived(3, r0=None, r1=None)], ranks=2)
    assert taken(ready) == [1]


def folded(steps: list[ArrivedStep], ranks: int) -> RunState:
    """A run of these steps, judged."""
    info = step_facts.RunInfo("run", "a run", ranks)
    fold = RunState(Engine(info), generation=0)
    for step in steps:
        fold.see(info, step)
    return fold


def test_what_not_all_ranks_watched_is_passed_over_and_counts_as_a_step() -> None:
    info = step_facts.RunInfo("run", "a run", 2)
    fold = folded([arrived(1, r0=None, r1=3)], ranks=2)
    assert fold.see(info, arrived(2, r0=None)) is None
    assert fold.see(info, arrived(3, r0=17, r1=17)) is not None
    assert fold.see(info, arrived(17, r0=None, r1=None)) is not None
    assert fold.at.reached == {0: 17}
    assert fold.at.steps == 17


def test_the_tokens_are_those_of_steps_that_were_watched() -> None:
    term = schema.Term(kind="nll", reduction="mean", tokens=10, weight=0.1)
    fold = RunState(Engine(step_facts.RunInfo("run", "a run")), generation=0)
    for step, due in ((1, None), (2, 5), (5, None)):
        record = schema.StepRecord(optimizer=0, step=step, time=1.0, post_factor=1.0, next=due)
        record.micro_batches = [schema.MicroBatch(number=step, terms=[term], fresh=True)]
        fold.see(step_facts.RunInfo("run", "a run"), ArrivedStep(0, step, NOW, {0: record}))
    assert (fold.at.steps, fold.at.tokens) == (5, 30)
