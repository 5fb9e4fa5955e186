"""Facts of windows that are described instead of trained: quick, and free to be extreme."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gradledger import records
from gradledger.delivery.encoding import encode
from gradledger_monitor.evaluation.run_state import RunState
from gradledger_monitor.ingest import schema
from gradledger_monitor.model.findings import EvaluationResult
from gradledger_monitor.model.step_facts import RunInfo, StepFacts, merge

CROSS_ENTROPY = "NllLossBackward0"


def term(tokens: int, weight: float, reduction: str = "mean", **more: Any) -> records.Term:
    """A cross entropy over so many tokens, each of which got a weight; nothing is padded."""
    known = {"size": tokens, "rows": tokens, "positions": 1, "undivided": False}
    made = records.Term(CROSS_ENTROPY, "mean", tokens, weight=weight)
    for name, value in {**known, "reduction": reduction, **more}.items():
        setattr(made, name, value)
    return made


def record(
    terms: Sequence[records.Term | Sequence[records.Term]], number: int = 1, **more: Any
) -> records.StepRecord:
    """A step with one micro-batch for each term, or list of terms."""
    lists = [[each] if isinstance(each, records.Term) else list(each) for each in terms]
    batches = [
        records.MicroBatch(number=index, loss=1.0, terms=each, fresh=index == 1)
        for index, each in enumerate(lists, 1)
    ]
    known: dict[str, Any] = {"norm": 1.0, "post_factor": 1.0, "lr": 0.1, **more}
    return records.StepRecord(0, number, 1_000.0 + number, batches, **known)


def accepted(sent: records.StepRecord) -> schema.StepRecord:
    """The record as the service reads it."""
    decoded = schema.decoder.decode(encode(sent))
    assert isinstance(decoded, schema.StepRecord)
    return decoded


def facts(*ranks: records.StepRecord, **run: Any) -> StepFacts:
    """One step of all ranks, in order."""
    info = RunInfo("run", "a run", **{"world_size": len(ranks), "optimizers": ["SGD"], **run})
    by_rank = {rank: accepted(sent) for rank, sent in enumerate(ranks)}
    return merge(info, ranks[0].optimizer, ranks[0].step, by_rank)


def judged(steps: Sequence[StepFacts]) -> EvaluationResult:
    """The judgement on steps in order, in which no rule failed."""
    state = RunState(steps[0].run)
    for step in steps:
        state.add_facts(step)
    evaluation = state.result()
    failed = [f"{r}: {why}" for r, why in evaluation.coverage.items() if "the rule failed" in why]
    assert not failed
    return evaluation


def accused(evaluation: EvaluationResult) -> dict[str, int]:
    """Rules with a finding that nothing inhibits, and the step at which each first fired."""
    loud = [f for f in evaluation.findings if f.inhibited_by is None]
    return {finding.rule: finding.first_step for finding in loud}
