"""The candidate objectives of a window: which terms, in which unit; losses with own weights."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from gradledger.records import StepRecord, Term
from gradledger_monitor.model import tolerances
from gradledger_monitor.model.losses.names import tokens_of
from gradledger_monitor.model.losses.term_weights import weights_vary
from gradledger_monitor.model.objectives import Objective, objectives_of
from gradledger_monitor.model.readings import Reading
from gradledger_monitor.model.token_ledger import Ledger
from helpers.facts import accepted, facts, record, term

MOST = 0.01
EDGE = MOST * (1 - tolerances.INSIDE)


def inside(least: float | None, most: float | None, weight: float | None = MOST) -> bool:
    """Whether a term with these weights of tokens weighs them differently."""
    loss = term(8, 0.0, weight_min=least, weight_max=most)
    sent = accepted(record([dataclasses.replace(loss, weight=weight)]))
    return weights_vary(sent.micro_batches[0].terms[0])


def test_weights_that_differ_inside_a_micro_batch_vary() -> None:
    assert inside(EDGE * 0.999, MOST)
    assert not inside(EDGE, MOST)
    assert not inside(MOST, MOST)


def test_a_token_far_below_the_largest_weight_varies_also_where_signs_differ() -> None:
    assert inside(MOST, MOST, EDGE * 0.999)
    assert not inside(MOST, MOST, EDGE)
    assert inside(-MOST, MOST)
    assert not inside(MOST, MOST, -MOST)


def test_weights_that_are_not_known_do_not_vary() -> None:
    assert not inside(None, MOST, MOST / 2)
    assert not inside(MOST / 2, None, MOST / 2)
    assert not inside(MOST / 2, MOST, None)


def objectives(*micro_batches: Term | list[Term], **more: Any) -> list[Objective]:
    """The objectives of one window."""
    return facts(record(micro_batches, **more)).objectives


def shown(listed: list[Objective]) -> list[tuple[str, str, float, float]]:
    """Name, unit, number of units and balance of each."""
    return [(o.name, o.reading.unit, o.ledger.tokens, round(o.ledger.balance, 9)) for o in listed]


def test_a_loss_with_a_backward_of_its_own_is_no_part_of_another_of_its_kind() -> None:
    """A critic has a mean of real and one of fake data; a penalty on its gradient is another."""

    def mean(weight: float, reduction: str, **more: Any) -> Term:
        return dataclasses.replace(term(8, weight, reduction, **more), kind="MeanBackward0")

    two, penalty = [mean(1 / 32, "mean")] * 2, [mean(2.5, "none", undivided=True)]
    step = facts(record([two, two, penalty, penalty]))
    parts = {o.name: (len(o.terms), step.micro_batches_of(o)) for o in step.objectives}
    assert parts == {f"MeanBackward0#{number}": (2, 2) for number in (0, 1, 2)}
    without_the_second = facts(record([two, two[:1]]))
    (either,) = without_the_second.objectives  # of which one micro-batch has the first or second
    assert len(either.terms) == 3 and either.is_unmatched


def other(like: Term, kind: str, **changes: Any) -> Term:
    """The same as another kind of loss."""
    return dataclasses.replace(like, kind=kind, **changes)


def squares(like: Term, **changes: Any) -> Term:
    """The same as a squared error."""
    return other(like, "MseLossBackward0", **changes)


CE, MSE = "NllLossBackward0#0", "MseLossBackward0#0"


def test_without_a_term_there_is_no_objective() -> None:
    assert objectives_of([], 1e-3, 1.0) == []


def test_one_loss_is_one_objective() -> None:
    assert shown(objectives(term(10, 0.1), term(30, 0.01))) == [(CE, "tokens", 40, 1.3)]


def test_the_unit_in_which_the_contract_holds_is_shown() -> None:
    by_class = [term(n, 1 / 24, "sum", class_weight=w) for n, w in ((4, 8.0), (6, 16.0))]
    assert shown(objectives(*by_class)) == [(CE, "class_weight", 24, 1.0)]
    for unit, units in (("rows", {"rows": 3}), ("positions", {"rows": 2, "positions": 3})):
        loss = squares(term(12, 1 / 3, "sum", **{"positions": 4, **units}))
        assert shown(objectives(loss)) == [(MSE, unit, 3, 1.0)]
    summed_classes = squares(term(12, 1 / 3, "none", elements=3, element_weight=1 / 3))
    assert shown(objectives(summed_classes)) == [(MSE, "elements", 3, 1.0)]


def test_a_mean_or_a_cross_entropy_is_not_meant_for_each_row() -> None:
    for loss in (squares(term(12, 1 / 3, rows=3)), term(12, 1 / 3, "sum", rows=3, positions=3)):
        assert objectives(loss)[0].reading.unit == "tokens"


def test_elements_in_one_dimension_have_no_positions() -> None:
    loss = squares(term(12, 1.0, "sum", rows=12, positions=1))
    assert shown(objectives(loss)) == [(MSE, "tokens", 12, 12.0)]


def test_a_unit_that_one_term_lacks_is_not_shown() -> None:
    loss = squares(term(12, 1 / 6, "sum", rows=3, positions=4))
    assert objectives(loss, loss)[0].reading.unit == "rows"
    assert objectives(loss, dataclasses.replace(loss, rows=None))[0].reading.unit == "tokens"


def test_a_row_of_several_elements_is_meant_by_a_sum_and_may_be_by_a_mean() -> None:
    """A divergence over 7 classes: one row of 7 has a balance of 1/7, and its elements of 1."""
    row = {"elements": 7, "element_weight": 1 / 7}
    for reduction, unit in (("sum", "tokens"), ("mean", "elements")):
        loss = other(term(1, 1 / 7, reduction, **row), "SumBackward0")
        assert objectives(loss)[0].reading.unit == unit


def test_masked_elements_are_not_meant() -> None:
    """A mean over all positions has a balance of 1 in those, and every mask another share."""
    masked = [term(n, 1 / 24, "none", elements=12, element_weight=1 / 24) for n in (6, 3)]
    assert shown(objectives(*masked)) == [(CE, "tokens", 9, 0.375)]


def test_an_objective_that_its_loss_weighs_inside_is_shown_in_elements() -> None:
    advantages = {"weight_min": 0.0, "weight_max": 0.3, "elements": 12}
    loss = term(10, 0.05, "none", element_weight=1 / 24, **advantages)
    assert shown(objectives(loss, loss)) == [(CE, "elements", 24, 1.0)]


def test_an_advantage_of_a_single_sequence_is_a_weight_of_the_loss_itself() -> None:
    """Two micro-batches of one sequence each: sum / 30, with advantages of 0.7 and -0.2."""
    weights = ((10, 0.7), (20, -0.2))
    policy = [term(n, w / 30, "none", elements=20, element_weight=1 / 30) for n, w in weights]
    step = facts(record(policy))
    assert not step.separate_losses
    assert shown(step.objectives) == [(CE, "counted_elements", 30, 1.0)]


def test_a_mean_by_hand_is_no_weight_of_the_loss_itself() -> None:
    means = [term(n, 1 / (2 * n), "none", elements=20, element_weight=1 / 2) for n in (10, 20)]
    assert not objectives(*means)[0].weighted_inside


def test_the_heaviest_loss_comes_first() -> None:
    light, heavy = term(10, 0.01), squares(term(10, 0.08))
    assert shown(objectives([light, heavy])) == [
        (MSE, "tokens", 10, 0.8),
        (CE, "tokens", 10, 0.1),
    ]


def test_of_equally_heavy_losses_the_first_by_name_comes_first() -> None:
    one, two = term(10, 0.05), squares(term(10, 0.05))
    assert [o.name for o in objectives([one, two])] == [MSE, CE]


def test_weights_are_compared_as_they_were_applied_over_all_micro_batches() -> None:
    """A sign or a second micro-batch makes a loss no lighter."""
    negative = squares(term(10, -0.06))
    assert objectives([term(10, 0.04), negative], [term(10, 0.01), negative])[0].name == MSE
    early = [squares(term(10, weight)) for weight in (0.09, 0.01)]
    assert objectives([term(10, 0.02), early[0]], [term(10, 0.02), early[1]])[0].name == MSE


def test_the_loss_scale_that_is_taken_out_of_the_gradient_makes_a_loss_no_heavier() -> None:
    """Without a measured factor, each micro-batch's own scale is taken out."""
    step = record([squares(term(10, 64 * 0.01)), term(10, 0.03)], post_factor=None)
    step.micro_batches[0].scale = 64.0
    assert [o.name for o in facts(step).objectives] == [CE, MSE]


def test_before_an_even_loss_whose_balance_is_off_comes_one_that_is_fair() -> None:
    undivided = squares(term(10, 0.1, "none", undivided=True))
    assert [o.name for o in objectives(*[[term(10, 0.05), undivided]] * 2)] == [CE, MSE]


def test_a_further_loss_that_is_fair_by_chance_stays_behind_the_main_one() -> None:
    """Both are divided by a number of samples; or nothing divides a further sum."""
    for of_main, of_further in ((False, False), (True, True)):
        main = term(20, 0.2, "sum", undivided=of_main)
        further = squares(term(10, 0.05, "sum", undivided=of_further))
        assert [o.name for o in objectives(*[[main, further]] * 2)] == [CE, MSE]


def test_a_loss_that_is_uneven_stays_before_one_that_is_fair() -> None:
    """Its weights are the mistake, and not its size."""
    terms = [[term(n, 0.7 / n), squares(term(4, 0.125))] for n in (10, 30)]
    assert [o.name for o in objectives(*terms)] == [CE, MSE]


def test_entries_that_are_added_up_below_the_outermost_reduction_make_a_loss_no_heavier() -> None:
    """An entropy adds up the classes of a token: 32 entries are one."""
    main = term(100, 0.01, "none", elements=8, element_weight=1 / 8)
    added_up = term(3200, 0.05 / 100, "none", elements=8, element_weight=0.05 / 8)
    entropy = other(added_up, "MeanBackward0")
    assert [o.name for o in objectives([main, entropy])] == [CE, "MeanBackward0#0"]


def test_errors_that_are_added_up_below_the_outermost_reduction_are_as_many() -> None:
    """Those of the pixels of an image, beside a divergence with a weight of 4."""
    pixels = squares(term(800, 1 / 8, "none", elements=8, element_weight=1 / 8))
    divergence = other(term(32, 4 / 8, "none", elements=8, element_weight=4 / 8), "MeanBackward0")
    assert [o.name for o in objectives([pixels, divergence])] == [MSE, "MeanBackward0#0"]


def test_weights_of_both_signs_that_each_micro_batch_divides_by_their_size_are_even() -> None:
    def advantages(size: float, signed: float) -> Term:
        each, average = 1 / (2 * size), 1 / 32  # of 16, whose sizes add up to 1/2
        ends = {"weight_min": 0.01, "weight_max": 0.09, "weight_size": average}
        return term(16, signed, "none", elements=16, element_weight=each, **ends)

    (objective,) = objectives(advantages(10.0, 0.003), advantages(14.0, -0.01))
    assert objective.reading.unit == "tokens" and objective.reading.is_even(1e-3)
    assert objective.ledger.balance == pytest.approx(1)


def test_a_penalty_has_no_tokens_and_comes_last_whatever_its_weight() -> None:
    penalty = Term("SumBackward0", "sum", elements=500, element_weight=9.0, penalty=True)
    listed = objectives([term(10, 0.1), penalty, penalty])
    assert shown(listed) == [(CE, "tokens", 10, 1.0), ("penalty#0", "tokens", 1, 9.0)]


def test_two_terms_on_one_head_are_parts_or_tasks_and_more_are_parts() -> None:
    tasks = [term(10, 0.1, head=1), term(30, 1 / 30, head=1)]
    assert objectives(tasks)[0].reading.of_part
    assert shown(objectives([*tasks, term(5, 0.2, head=1)])) == [(CE, "tokens", 45, 3.0)]


def test_a_loss_times_zero_is_left_out_only_of_a_whole_rank() -> None:
    """An integer division made the weight zero: without it, the window would be balanced."""
    zero = term(10, 0.0, coefficient=0.0)
    assert facts(record([zero, term(10, 0.1)])).separate_losses
    assert not facts(record([term(10, 0.1)]), record([zero])).separate_losses


def test_two_sums_on_one_head_are_parts() -> None:
    chunks = [term(10, 1 / 10, "sum", head=1), term(10, 1 / 10, "sum", head=1)]
    assert shown(objectives(chunks)) == [(CE, "tokens", 20, 2.0)]


def test_losses_that_are_fair_together_are_shown_as_one() -> None:
    heads = [[term(10, 0.0125, head=1), term(30, 0.0125, head=2)]] * 2
    step = facts(record(heads))
    assert [o.name for o in step.objectives] == ["NllLossBackward0#1", CE]
    assert step.objective is not None and step.objective is step.together
    assert step.objective.ledger.tokens == 80
    extra = [[*window, squares(term(5, 0.001, "sum"))] for window in heads]
    assert facts(record(extra)).together is not None  # those of one kind


def test_the_factor_after_backward_is_in_every_objective() -> None:
    assert shown(objectives(term(10, 0.1), post_factor=0.5)) == [(CE, "tokens", 10, 0.5)]


def test_an_objective_is_fair_only_if_it_is_even_and_its_balance_is_the_scale() -> None:
    def objective(sent: StepRecord) -> Reading:
        return facts(sent).objectives[0].reading

    even = objective(record([term(10, 0.2), term(10, 0.2)]))
    assert even.is_even(1e-3)
    assert not even.is_fair(1e-3, 1.0)
    assert even.is_fair(1e-3, 4.0)
    uneven = objective(record([term(10, 0.02), term(10, 0.08)]))
    assert uneven.ledger.balance == pytest.approx(1.0)
    assert not uneven.is_even(1e-3) and not uneven.is_fair(1e-3, 1.0)


def test_an_objective_at_the_very_tolerance_is_still_fair() -> None:
    def account(balance: float, misallocation: float) -> Reading:
        return Reading("tokens", Ledger(8, balance, misallocation, ()), [])

    assert account(1.25, 0.25).is_fair(0.25, 1.0)
    assert account(2.5, 0.25).is_fair(0.25, 2.0)
    assert not account(1.3125, 0.25).is_fair(0.25, 1.0)
    assert not account(1.0, 0.3125).is_fair(0.25, 1.0)


def test_a_mean_over_elements_that_do_not_count_is_no_fair_reading() -> None:
    """A focal loss: the mean of a function of the cross entropy, over ignored targets, too."""
    over: dict[str, Any] = {"elements": 20, "element_weight": 1 / 20}
    assert shown(objectives(term(20, 1 / 20, "none", **over))) == [(CE, "tokens", 20, 1.0)]
    ignored = term(12, 1 / 20, size=20, **over)
    assert shown(objectives(ignored)) == [(CE, "tokens", 12, 0.6)]


def test_means_by_class_weights_of_equal_counts_are_not_equal_weights_of_tokens() -> None:
    def of(*sums: float, reduction: str = "mean") -> bool:
        terms = [term(10, 1 / 20, reduction, class_weight=weights) for weights in sums]
        (objective,) = objectives(*terms)
        return objective.is_of_weighted_means(1e-3)

    assert of(8.0, 16.0)
    assert not of(8.0, 8.0)
    assert not of(8.0, 16.0, reduction="sum")


def test_a_loss_may_be_divided_by_the_sum_of_the_weights_that_it_gives_its_tokens() -> None:
    """Importance weights of a window, which add up to 8.5."""

    def weighted(mean: float, count: int, divisor: float) -> Term:
        return dataclasses.replace(
            term(count, mean / divisor),
            weight_min=0.1 / divisor,
            weight_max=2 / divisor,
            elements=count,
            element_weight=1 / divisor,
        )

    of_window = [weighted(0.5, 5, 8.5), weighted(1.5, 4, 8.5)]
    assert shown(objectives(*of_window)) == [(CE, "loss_weights", 8.5, 1.0)]
    # the sum of each micro-batch divides it, and K: a mean of means
    (of_each,) = objectives(weighted(0.5, 5, 5.0), weighted(1.5, 4, 12.0))
    assert of_each.reading.unit == "loss_weights"
    assert of_each.ledger.tokens == pytest.approx(8.5)
    assert of_each.ledger.balance == pytest.approx(1.0) and of_each.ledger.misallocation > 0.2
    others = [weighted(0.5, 5, 5.0), weighted(1.5, 4, 10.0)]
    assert [unit for _, unit, _, _ in shown(objectives(*others))] == ["elements"]


def test_utterances_of_one_length_by_chance_are_read_in_the_same_unit_as_others() -> None:
    """The mean of CTC divides each by its length: its weight is 1/4, of whatever window."""
    speech = {"elements": 2, "element_weight": 1 / 6, "undivided": True}
    same = other(term(2, 1 / 24), "CtcLossBackward0", **speech)
    mixed = other(
        term(2, 1 / 16), "CtcLossBackward0", weight_min=1 / 24, weight_max=1 / 12, **speech
    )
    for each in (same, mixed):
        assert shown(objectives(each)) == [("CtcLossBackward0#0", "elements", 2, round(1 / 3, 9))]
    of_three = {"elements": 6, "element_weight": 1 / 2}  # letters: 6 / 2 = 3 of utterances
    chance = other(term(6, 1 / 6), "CtcLossBackward0", **of_three)
    assert shown(objectives(chance)) == [("CtcLossBackward0#0", "elements", 6, 3.0)]


def test_tokens_of_a_micro_batch_are_counted_once_whatever_else_its_loss_holds() -> None:
    penalty = dataclasses.replace(term(1, 0.1), kind="SumBackward0", tokens=7, penalty=True)
    chunks = [term(20, 0.1, "sum", head=1), term(10, 0.1, "sum", head=1)]
    second_head = term(30, 0.1, head=2)
    sent = accepted(record([[*chunks, second_head, penalty], [penalty]]))
    assert [tokens_of(m) for m in sent.micro_batches] == [30, 0]


@pytest.mark.parametrize(
    ("divisors", "unit", "balance"),
    [
        ([[4.0, 32.0], [32.0, 4.0], [4.0, 30.0], [4.0, 33.0]], "rows", 1.0),
        ([[32.0], [32.0], [30.0], [33.0]], "tokens", 4.0),
        ([[4.0], [4.0], [4.0], [4.0]], "tokens", 4.0),  # of which more is not known
    ],
)
def test_what_k_and_its_count_divide_lacks_no_division_by_k(
    divisors: list[list[float]], unit: str, balance: float
) -> None:
    """The losses of 4 coordinates each, divided by boxes: 4 micro-batches are as many."""
    rows = (32, 32, 30, 33)
    losses = [
        term(4 * n, 1 / n / 4, "sum", kind="SmoothL1LossBackward0", rows=n, divisors=of)
        for n, of in zip(rows, divisors, strict=True)
    ]
    (objective,) = objectives(*losses)
    assert objective.reading.unit == unit
    assert objective.ledger.balance == pytest.approx(balance)
