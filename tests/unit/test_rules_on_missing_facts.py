"""A rule states why a fact is missing in the words of the hooks."""

from __future__ import annotations

import pytest

from gradledger.records import Samples, Scaler, StepRecord
from gradledger_monitor.rules.docs import rules_by_id
from helpers.facts import facts, judged, record, term

WHY = "the observer failed: out of memory"


def blind(fact: str) -> StepRecord:
    """A window under a GradScaler and DDP, of which one fact is missing."""
    step_record = record(
        [term(10, 102.4)] * 2, sync="averaged", wrapper="ddp", post_factor=1 / 1024
    )
    step_record.scaler = Scaler(1, 1024.0)
    for micro_batch in step_record.micro_batches:
        micro_batch.scale = 1024.0
    step_record.samples = Samples([1.0], [1.0])
    if hasattr(step_record, fact):
        setattr(step_record, fact, None)
    step_record.missing = {fact: WHY}
    return step_record


def unanswered(fact: str) -> set[str]:
    """The rules that state so."""
    coverage = judged([facts(blind(fact), blind(fact))]).coverage
    return {rule for rule, text in coverage.items() if text == f"not_measured: {WHY}"}


def family(name: str) -> set[str]:
    return {rule for rule in rules_by_id() if rule.startswith(f"{name}.")}


def test_without_the_scale_no_rule_of_the_scaler_answers() -> None:
    assert unanswered("scale") >= family("scaler")


def test_without_collectives_no_rule_of_ranks_answers() -> None:
    assert unanswered("collectives") >= family("ddp")


@pytest.mark.parametrize(
    ("fact", "rules"),
    [
        ("norm", {"norm.nonfinite", "scaler.all_grads_zero"}),
        ("schedule", {"scheduler.step_every_microbatch", "scheduler.stepped_on_skip"}),
        ("post_factor", {"scaler.double_unscale", "scaler.step_bypassed"}),
    ],
)
def test_a_figure_that_is_missing_leaves_those_open_that_read_it(
    fact: str, rules: set[str]
) -> None:
    assert unanswered(fact) >= rules


def test_a_loop_without_a_scheduler_is_asked_nothing_about_one() -> None:
    coverage = judged([facts(record([term(10, 0.1)]))]).coverage
    none = "not_applicable: no LR scheduler"
    assert coverage["scheduler.step_every_microbatch"] == none


def test_the_answer_says_that_values_were_changed_after_the_reduction_was_judged() -> None:
    clipped = record([term(50, 1 / 200)] * 4, post_factor=None, changed=True)
    node = next(n for n in judged([facts(clipped)]).tree if n.node == "reduction")
    assert node.status == "ok"
    assert node.reason.count("changes of the gradients by hooks or by the loop are not judged") == 1


@pytest.mark.parametrize(("share", "status"), [(1 / 2, "ok"), (2.0, "not_measured")])
def test_losses_that_are_fair_together_are_judged_before_values_are_changed(
    share: float, status: str
) -> None:
    """Clipped by parameter: the mean of two heads, divided by K; and the sum, which is not."""
    heads = [[term(50, share / 200, head=head) for head in (1, 2)] for _ in range(4)]
    clipped = record(heads, post_factor=None, changed=True)
    node = next(n for n in judged([facts(clipped)]).tree if n.node == "reduction")
    assert node.status == status
