"""What is kept of a run lets another process go on exactly where the first one was."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from gradledger.records import encode
from gradledger_monitor.evaluation.engine import Engine
from gradledger_monitor.evaluation.evaluator_version import stamp
from gradledger_monitor.evaluation.run_state import RunState
from gradledger_monitor.evaluation.step_completeness import ArrivedStep
from gradledger_monitor.ingest import schema
from gradledger_monitor.model.inactivity import Inactivity
from gradledger_monitor.model.step_facts import RunInfo
from gradledger_monitor.rules.overrides import RuleOverrides
from helpers.batches import fair_step, step
from helpers.strategies import step_records

RUN = RunInfo("r", "a run", 1, ["SGD"], environment={"torch": "2.13"})


def fold() -> RunState:
    """A run of which nothing was judged."""
    return RunState(Engine(RUN), 0)


def arrived(record: Any, number: int) -> ArrivedStep:
    """A record as the judge gets it, as the step of that number."""
    decoded = schema.decoder.decode(encode(record))
    assert isinstance(decoded, schema.StepRecord)
    decoded.step, decoded.optimizer = number, decoded.optimizer % 2
    return ArrivedStep(decoded.optimizer, number, 1_000.0 + number, {0: decoded})


def feed(to: RunState, steps: list[ArrivedStep]) -> None:
    """Judge some steps."""
    for one in steps:
        to.see(RUN, one)


def taken_over(from_: RunState) -> RunState:
    """Another fold, which goes on where this one is."""
    other = fold()
    other.restore(from_.snapshot())
    return other


@settings(max_examples=60)
@given(st.lists(step_records, min_size=2, max_size=12), st.data())
def test_going_on_from_what_was_kept_gives_the_same_judgement(
    records: list[Any], data: st.DataObject
) -> None:
    steps = [arrived(record, number) for number, record in enumerate(records, 1)]
    cut = data.draw(st.integers(1, len(steps) - 1))
    whole, first = fold(), fold()
    feed(whole, steps)
    feed(first, steps[:cut])
    second = taken_over(first)
    feed(second, steps[cut:])
    # as text, for what is not a number equals nothing
    assert repr(second.engine.evaluation()) == repr(whole.engine.evaluation())
    assert repr(second.at) == repr(whole.at)


def test_long_memories_go_on_too() -> None:
    steps = [arrived(step(n) if n % 7 else fair_step(n), n) for n in range(1, 400)]
    whole, part = fold(), fold()
    feed(whole, steps)
    for begin in range(0, len(steps), 37):
        part = taken_over(part)
        feed(part, steps[begin : begin + 37])
    assert part.engine.evaluation() == whole.engine.evaluation()


def test_a_silence_is_taken_in_once_and_in_its_place() -> None:
    steps = [arrived(fair_step(n), n) for n in range(1, 31)]
    silences = {(0, 20): Inactivity(90.0, [0], None)}
    live, again = fold(), fold()
    feed(live, steps[:20])
    live.silences = silences
    live.hear_silence(0)
    live.hear_silence(0)
    live = taken_over(live)
    live.silences = again.silences = silences
    feed(live, steps[20:])
    feed(again, steps)
    (finding,) = live.engine.evaluation().findings
    assert (finding.rule, finding.first_step, finding.steps) == ("run.stalled", 20, 1)
    assert again.engine.evaluation() == live.engine.evaluation()


def test_other_choices_do_not_go_on_from_it() -> None:
    assert stamp(RuleOverrides(), RUN) == stamp(RuleOverrides(), RUN)
    assert stamp(RuleOverrides(), RUN) != stamp(RuleOverrides(off=("norm.*",)), RUN)
    assert stamp(RuleOverrides(), RUN) != stamp(RuleOverrides(), replace(RUN, world_size=2))
