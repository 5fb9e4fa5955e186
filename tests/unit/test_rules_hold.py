"""No record that the wire accepts makes a rule raise, and no arrival order changes a finding."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from gradledger import records
from gradledger.delivery.encoding import encode
from gradledger_monitor.evaluation.run_state import RunState
from gradledger_monitor.ingest import schema
from gradledger_monitor.model.step_facts import RunInfo, merge
from helpers.examples import examples
from helpers.strategies import step_records


def accepted(record: records.StepRecord) -> schema.StepRecord:
    decoded = schema.decoder.decode(encode(record))
    assert isinstance(decoded, schema.StepRecord)
    return decoded


def evaluated(run: RunInfo, windows: list[dict[int, schema.StepRecord]]) -> dict[str, Any]:
    state = RunState(run)
    for step, by_rank in enumerate(windows, 1):
        state.add_facts(merge(run, 0, step, by_rank))
    return asdict(state.result())


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(st.lists(step_records, min_size=1, max_size=2), min_size=1, max_size=4))
def test_no_rule_fails_on_anything_that_the_wire_accepts(
    windows: list[list[records.StepRecord]],
) -> None:
    run = RunInfo("r", "n", world_size=2, optimizers=["AdamW"])
    by_rank = [{rank: accepted(r) for rank, r in enumerate(ranks)} for ranks in windows]
    coverage = evaluated(run, by_rank)["coverage"]
    assert coverage and not [reason for reason in coverage.values() if "the rule failed" in reason]


@settings(max_examples=examples(25), deadline=None)
@given(st.lists(st.tuples(step_records, step_records), min_size=1, max_size=3))
def test_the_order_in_which_ranks_arrive_changes_nothing(
    windows: list[tuple[records.StepRecord, records.StepRecord]],
) -> None:
    run = RunInfo("r", "n", world_size=2, optimizers=["AdamW"])
    one = [{0: accepted(a), 1: accepted(b)} for a, b in windows]
    other = [{1: accepted(b), 0: accepted(a)} for a, b in windows]
    assert repr(evaluated(run, one)) == repr(evaluated(run, other))
