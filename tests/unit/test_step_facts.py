"""The facts of one step: every metric is right, or absent with a reason."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest

from gradledger.records import Event, MicroBatch, StepRecord, Term
from gradledger_monitor.model.chart_metrics import CHART_METRICS, chart_metrics, metrics_of_rule
from gradledger_monitor.rules.docs import rules_by_id
from helpers.facts import facts, record, term

FAIR = [term(10, 1 / 40), term(30, 1 / 40)]


def means(*tokens: int, divide: float | None = None) -> list[Term]:
    """A mean over each micro-batch, averaged over them."""
    by = len(tokens) if divide is None else divide
    return [term(n, 1 / (n * by)) for n in tokens]


def test_the_ledger_of_one_rank_is_that_of_its_terms() -> None:
    step = facts(record(means(10, 30)))
    assert step.ledger is not None
    assert (step.ledger.tokens, step.ledger.balance) == pytest.approx((40, 1))
    assert step.ledger.misallocation == pytest.approx(0.25)
    assert [e.micro_batch for e in step.ledger.entries] == [0, 1]
    assert [e.relative for e in step.ledger.entries] == pytest.approx([2, 2 / 3])


def test_a_factor_after_ddp_applies_to_the_tokens_of_all_ranks() -> None:
    ranks = [record([term(10, 1.0)], sync="averaged", post_factor=f) for f in (1 / 10, 1 / 20)]
    ledger = facts(*ranks).ledger
    assert ledger is not None
    assert (ledger.balance, ledger.misallocation) == pytest.approx((1.0, 0.0))  # of rank 0


def test_a_rank_without_a_sample_does_not_change_the_relative_weights() -> None:
    ranks = [record([term(10, 1024 / 10)], sync="averaged", post_factor=1 / 1024) for _ in "01"]
    ranks[1].post_factor, ranks[1].missing = None, {"post_factor": "no sample"}
    for sent in ranks:
        sent.micro_batches[0].scale = 1024.0
    step = facts(*ranks)
    assert step.factor_unmeasured == "no sample"
    assert step.ledger is not None
    assert step.ledger.misallocation == 0


def test_averaged_ranks_share_one_ledger_in_which_each_counts_once() -> None:
    right = [term(10, 2 / 80), term(30, 2 / 80)]  # sum / N * R
    step = facts(record(right, sync="averaged"), record(right, sync="averaged"))
    assert step.ledger is not None
    assert (step.ledger.tokens, step.ledger.balance) == pytest.approx((80, 1))


def test_ranks_that_share_no_gradient_have_separate_ledgers() -> None:
    step = facts(record(FAIR), record(means(1, 2)))
    assert step.ledger is not None
    assert (step.ledger.tokens, step.ledger.balance) == pytest.approx((40, 1))


def test_gradients_that_were_zeroed_do_not_count() -> None:
    sent = record([term(5, 7.0), *FAIR])
    sent.micro_batches[1].fresh = True
    step = facts(sent)
    assert step.ledger is not None
    assert (step.micro_batches, step.ledger.tokens) == (2, 40)
    assert step.ledger.balance == pytest.approx(1)


@pytest.mark.parametrize(
    ("factor", "more", "balance"),
    [
        (0.5, {}, 0.5),
        (0.1, {"events": [Event("clip_norm", 2, limit=1.0, norm=10.0)]}, 1.0),
        (1.0, {"events": [Event("clip_norm", 2, limit=1.0, norm=0.5)]}, 1.0),
        (0.1, {"events": [Event("clip_norm", 1, limit=1.0, norm=10.0)]}, 0.1),
        (8.0, {"grad_scale": 8.0}, 1.0),
    ],
    ids=["scaled by hand", "clipped", "clipping did not engage", "clipped earlier", "fused"],
)
def test_what_happens_after_backward_is_in_the_balance_and_clipping_is_not(
    factor: float, more: dict[str, Any], balance: float
) -> None:
    step = facts(record(FAIR, post_factor=factor, **more))
    assert chart_metrics(step)["balance"] == pytest.approx(balance, rel=1e-5)


def test_the_true_loss_weighs_tokens_and_the_reported_one_does_not() -> None:
    sent = record(means(10, 30))
    sent.micro_batches[0].loss, sent.micro_batches[1].loss = 4.0 / 2, 2.0 / 2
    metrics = chart_metrics(facts(sent))
    assert metrics["loss_reported"] == pytest.approx(3.0)
    assert metrics["loss_token"] == pytest.approx((10 * 4 + 30 * 2) / 40)


def test_a_loss_that_is_minus_a_log_probability_keeps_its_sign() -> None:
    sent = record([term(10, -1 / 20, "sum"), term(30, -1 / 60, "sum")])
    sent.micro_batches[0].loss, sent.micro_batches[1].loss = 4.0 / 2, 2.0 / 2
    assert chart_metrics(facts(sent))["loss_token"] == pytest.approx((10 * 4 + 30 * 2) / 40)


def test_a_scaled_loss_is_reported_as_the_script_knows_it() -> None:
    sent = record([term(10, 1024 / 10)], post_factor=1 / 1024)
    sent.micro_batches[0].loss, sent.micro_batches[0].scale = 2048.0, 1024.0
    metrics = chart_metrics(facts(sent))
    assert (metrics["loss_reported"], metrics["loss_token"]) == pytest.approx((2, 2))
    assert (metrics["balance"], metrics["scale"]) == pytest.approx((1, 1024))


def test_class_weights_may_be_what_the_loss_divides_by() -> None:
    terms = [term(4, 1 / 12, "sum", class_weight=w) for w in (2.0, 10.0)]
    objective = facts(record(terms)).objective
    assert objective is not None
    assert objective.reading.unit == "class_weight"
    assert objective.ledger.balance == pytest.approx(1)


UNMEASURED = [
    (lambda r: r.micro_batches.clear(), "may be left from before, or assigned by the loop"),
    (lambda r: setattr(r, "skipped", True), "the GradScaler skipped this step"),
    (
        lambda r: setattr(r, "sync", "unknown"),
        "how the ranks' gradients were combined was not seen",
    ),
    (lambda r: r.micro_batches[1].terms.clear(), "no loss term was seen"),
    (lambda r: setattr(r.micro_batches[1], "scale", 8.0), "some backwards of this window were"),
    (lambda r: setattr(r.micro_batches[0].terms[0], "weight", math.inf), "not finite"),
    (lambda r: setattr(r.micro_batches[0].terms[0], "weight", None), "was not seen"),
    (lambda r: setattr(r.micro_batches[0].terms[0], "tokens", None), "was not seen"),
    (lambda r: r.missing.update(sync="the observer failed"), "the observer failed"),
]


@pytest.mark.parametrize(("spoil", "reason"), UNMEASURED)
def test_a_window_that_was_not_fully_observed_has_no_ledger_and_a_reason(
    spoil: Any, reason: str
) -> None:
    sent = record(means(10, 30))
    spoil(sent)
    step = facts(sent)
    metrics = chart_metrics(step)
    assert reason in (step.unmeasured or "")
    assert step.ledger is None
    assert (metrics["balance"], metrics["misallocation"], metrics["tokens"]) == (None, None, None)


def test_the_rank_that_was_not_seen_is_named() -> None:
    blind = record([], sync="averaged")  # so its gradients are those of the others
    step = facts(record(FAIR, sync="averaged"), blind)
    assert step.unmeasured == "rank 1: no backward added to the gradients of this window"


def test_without_the_record_of_a_rank_the_weights_of_the_others_are_compared() -> None:
    step = facts(record(means(10, 30), sync="averaged"), world_size=3)
    assert step.unmeasured is None
    assert step.factor_unmeasured == "no record of rank 1, 2 arrived"
    assert step.ledger is not None and step.ledger.misallocation == pytest.approx(0.25)
    metrics = chart_metrics(step)
    assert (metrics["balance"], metrics["tokens"]) == (None, None)  # of all ranks


def test_without_the_balance_a_loss_is_even_in_any_unit() -> None:
    """Which unit its author divided by shows in the balance alone."""
    by_rows = [
        term(12, 1 / 20, "sum", kind="MseLossBackward0", rows=10, size=12),
        term(24, 1 / 40, "sum", kind="MseLossBackward0", rows=10, size=24),
    ]
    by_rows[1].weight, by_rows[1].rows = 1 / 20, 20
    step = facts(record(by_rows, sync="averaged"), world_size=2)
    assert step.objective is not None and step.objective.reading.is_fair(1e-3, step.intended)


@pytest.mark.parametrize("factor", [None, math.nan, math.inf])
def test_without_the_factor_weights_are_known_relative_to_each_other_only(
    factor: float | None,
) -> None:
    step = facts(record(means(10, 30), post_factor=factor))
    metrics = chart_metrics(step)
    assert metrics["misallocation"] == pytest.approx(0.25)
    assert metrics["balance"] is None
    assert step.factor_unmeasured


def test_a_metric_that_was_not_measured_is_absent_and_never_zero() -> None:
    bare = StepRecord(0, 1, 1.0, [MicroBatch()])
    metrics = chart_metrics(facts(bare))
    assert {name for name, value in metrics.items() if value is not None} == {"micro_batches"}


def test_half_precision_has_a_larger_tolerance() -> None:
    assert facts(record(FAIR)).tolerance < facts(record(FAIR, half_precision=True)).tolerance


def test_a_mean_over_no_label_at_all_adds_nothing() -> None:
    empty = Term("NllLossBackward0", "mean", 0, size=9, missing={"weight": "no tokens"})
    sent = record([*FAIR, empty])
    sent.micro_batches[2].loss = math.nan
    step = facts(sent)
    assert step.ledger is not None
    assert (step.ledger.tokens, step.ledger.balance) == pytest.approx((40, 1))
    assert step.loss_token is not None


def regression(tokens: int, *, constant: bool, target: float = 1.0) -> MicroBatch:
    term = Term("MseLossBackward0", "mean", tokens, size=tokens, weight=1 / tokens)
    return MicroBatch(loss=1.0, terms=[term], constant_target=constant, fingerprint=target)


@pytest.mark.parametrize(
    ("tokens", "constant", "targets", "own", "may"),
    [
        ((8, 8), (True, True), (1.0, 0.0), True, True),
        ((8, 8), (True, True), (1.0, 1.0), False, True),
        ((8, 8, 8, 8), (True,) * 4, (1.0, 0.0, 1.0, 0.0), False, True),
        ((8, 8), (True, False), (1.0, 0.0), False, False),
        ((1, 1), (True, True), (1.0, 0.0), False, False),
    ],
    ids=["real and fake", "two of one", "real and fake twice", "a batch and another", "samples"],
)
def test_losses_with_different_constant_targets_are_separate_losses(
    tokens: tuple[int, ...],
    constant: tuple[bool, ...],
    targets: tuple[float, ...],
    own: bool,
    may: bool,
) -> None:
    batches = [
        regression(n, constant=c, target=target)
        for n, c, target in zip(tokens, constant, targets, strict=True)
    ]
    step = facts(StepRecord(0, 1, 1.0, batches, post_factor=1.0))
    assert (step.separate_losses, step.may_be_separate_losses) == (own, may)


def test_real_and_fake_on_one_layer_are_two_tasks() -> None:
    """Each has its own micro-batches: divided by their number, it is right."""
    batches = [regression(8, constant=True, target=target) for target in (1.0, 0.0, 1.0, 0.0)]
    for batch in batches:
        batch.terms[0].head, batch.terms[0].weight = 1, 1 / 16
    step = facts(StepRecord(0, 1, 1.0, batches, post_factor=1.0))
    assert [step.micro_batches_of(o) for o in step.objectives] == [2, 2]
    assert [o.ledger.balance for o in step.objectives] == pytest.approx([1, 1])


@pytest.mark.parametrize(
    ("tasks", "targets", "may"),
    [
        ((1, 1), (1.0, 1.0), False),  # a generator accumulates, with a loss beside
        ((1, 2), (1.0, 1.0), True),  # two critics, one after the other
        ((None, None), (1.0, 1.0), True),
        ((1, 1), (1.0, 0.0), True),
    ],
)
def test_several_losses_of_which_one_layer_computes_the_first_are_parts_of_one(
    tasks: tuple[int | None, ...], targets: tuple[float, ...], may: bool
) -> None:
    batches = [regression(8, constant=True, target=target) for target in targets]
    for batch, task in zip(batches, tasks, strict=True):
        batch.terms.append(Term("MeanBackward0", "mean", 8, size=8, weight=1 / 8))
        batch.task = task
    step = facts(StepRecord(0, 1, 1.0, batches, post_factor=1.0))
    assert step.may_be_separate_losses == may


def test_constant_targets_of_a_cross_entropy_are_a_positive_example_in_a_fixed_column() -> None:
    batches = means(8, 8)
    sent = record(batches)
    for batch in sent.micro_batches:
        batch.constant_target, batch.fingerprint = True, 0.0
    step = facts(sent)
    assert not step.separate_losses and not step.may_be_separate_losses


def test_consecutive_targets_are_those_of_a_contrastive_loss_and_no_separate_losses() -> None:
    batches = [regression(8, constant=True) for _ in range(2)]
    for batch in batches:
        batch.consecutive_target = True
    assert not facts(StepRecord(0, 1, 1.0, batches, post_factor=1.0)).separate_losses


def test_of_several_data_parallel_groups_the_first_with_a_loss_is_shown() -> None:
    """Two by two ranks: 0 and 2 average their gradients, and share their data with 1 and 3."""
    groups = [[0, 2], [1, 3], [0, 2], [1, 3]]
    sent = [record(FAIR, sync="averaged", data_group=group) for group in groups]
    step = facts(*sent)
    assert list(step.records) == [0, 2]
    assert step.run.world_size == 2
    assert step.ledger is not None
    assert (step.ledger.tokens, step.ledger.balance) == pytest.approx((80, 1))
    for without_loss in (sent[0], sent[2]):  # a stage of a pipeline
        without_loss.micro_batches = []
    assert list(facts(*sent).records) == [1, 3]


def test_a_rank_that_is_missing_in_its_group_is_named() -> None:
    sent = record(FAIR, sync="averaged", data_group=[0, 3])
    assert facts(sent, world_size=4).missing_ranks == "no record of rank 3 arrived"


def test_ranks_that_share_all_their_data_are_one_member() -> None:
    """Tensor parallelism alone: each rank has the gradient of the same tokens."""
    step = facts(*[record(FAIR, data_group=[rank]) for rank in (0, 1)])
    assert step.run.world_size == 1
    assert step.ledger is not None
    assert (step.ledger.tokens, step.ledger.balance) == pytest.approx((40, 1))


def test_the_norm_of_sharded_gradients_is_over_all_ranks() -> None:
    parts = [record(FAIR, norm=norm, sharded=True, sync="averaged") for norm in (3.0, 4.0)]
    assert chart_metrics(facts(*parts))["norm"] == 5.0
    assert facts(parts[0], world_size=2).norm is None
    assert facts(record(FAIR, norm=3.0), record(FAIR, norm=3.0)).norm == 3.0


def test_every_metric_is_computed_and_has_a_column() -> None:
    assert set(chart_metrics(facts(record([term(8, 1 / 8)])))) == set(CHART_METRICS)


@pytest.mark.parametrize("rule", sorted(rules_by_id()))
def test_every_rule_is_shown_by_metrics_that_exist(rule: str) -> None:
    assert metrics_of_rule(rule)
    assert set(metrics_of_rule(rule)) <= set(CHART_METRICS)


def test_a_loss_that_is_multiplied_by_zero_is_no_part_of_the_account() -> None:
    """Its elements are read where another loss on the same log-probabilities arrives, too."""
    loss = term(10, 0.1, "sum")
    off = term(10, 0.1, "none", kind="SumBackward0", elements=20, element_weight=0.0)
    (objective,) = facts(record([[loss, off]])).objectives
    assert objective.ledger.tokens == 10
    (both,) = facts(record([[loss, dataclasses.replace(off, element_weight=0.1)]])).objectives[1:]
    assert both.ledger.tokens == 10
