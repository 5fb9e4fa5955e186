"""The candidate objectives of a window: which terms, in which unit; losses with own weights."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from gradledger.records import StepRecord, Term
from gradledger_monitor.model import tolerances
from gradledger_monitor.model.objectives import Objective, candidate_objectives, weights_vary
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
    """All candidate objectives of one window."""
    return facts(record(micro_batches, **more)).objectives


def shown(listed: list[Objective]) -> list[tuple[str, str, float, float]]:
    """Name, unit, number of units and balance of each."""
    return [(r.name, r.unit, r.ledger.tokens, round(r.ledger.balance, 9)) for r in listed]


def other(like: Term, kind: str, **changes: Any) -> Term:
    """The same as another kind of loss."""
    return dataclasses.replace(like, kind=kind, **changes)


def test_without_a_term_there_is_no_objective() -> None:
    assert list(candidate_objectives([])) == []


def test_one_loss_has_one_objective() -> None:
    assert shown(objectives(term(10, 0.1), term(30, 0.01))) == [("main", "tokens", 40, 1.3)]


def test_class_weights_are_a_separate_unit() -> None:
    mean = [term(4, 0.25, class_weight=8.0)]
    assert shown(objectives(mean)) == [
        ("main", "class_weight", 8.0, 1.0),
        ("main", "tokens", 4, 1.0),
    ]
    total = [term(4, 0.25, "sum", class_weight=8.0)]
    assert shown(objectives(total))[0] == ("main", "class_weight", 8.0, 2.0)


def test_a_sum_over_elements_may_be_meant_for_each_row_or_position() -> None:
    loss = other(term(12, 0.5, "sum", rows=3, positions=4), "MseLossBackward0")
    assert shown(objectives(loss)) == [
        ("main", "tokens", 12, 6.0),
        ("main", "rows", 3, 1.5),
        ("main", "positions", 4, 2.0),
    ]
    assert len(objectives(other(loss, "MseLossBackward0", reduction="mean"))) == 1
    assert len(objectives(other(loss, "NllLoss2DBackward0"))) == 1


def test_a_unit_that_one_term_lacks_gives_no_objective() -> None:
    loss = other(term(12, 0.5, "sum", rows=3, positions=4), "MseLossBackward0")
    without = dataclasses.replace(loss, rows=None)
    assert [r.unit for r in objectives(loss, without)] == ["tokens", "positions"]


def test_the_heaviest_loss_comes_first_and_alone_and_all_together_last() -> None:
    light, heavy = term(10, 0.01), other(term(10, 0.09), "MseLossBackward0")
    assert shown(objectives([light, heavy])) == [
        ("main", "tokens", 10, 0.9),
        ("main", "tokens", 10, 0.1),
        ("all", "tokens", 20, 1.0),
    ]


def test_of_equally_heavy_losses_the_first_by_name_comes_first() -> None:
    one, two = term(10, 0.05), other(term(10, 0.05), "MseLossBackward0")
    heads = [r.ledger.entries[0].term for r in objectives([one, two])]
    assert heads[:2] == ["MseLossBackward0#0", "NllLossBackward0#0"]


def test_weights_are_compared_as_they_were_applied_over_all_micro_batches() -> None:
    """A sign or a second micro-batch makes a loss no lighter."""
    negative = other(term(10, -0.06), "MseLossBackward0")
    listed = objectives([term(10, 0.04), negative], [term(10, 0.01), negative])
    assert listed[0].ledger.entries[0].term == "MseLossBackward0#0"


def test_a_loss_that_is_heavy_in_an_early_micro_batch_only_is_heavy_in_the_window() -> None:
    squares = [other(term(10, weight), "MseLossBackward0") for weight in (0.09, 0.01)]
    listed = objectives([term(10, 0.02), squares[0]], [term(10, 0.02), squares[1]])
    assert listed[0].ledger.entries[0].term == "MseLossBackward0#0"


def test_the_loss_scale_that_is_taken_out_of_the_gradient_makes_a_loss_no_heavier() -> None:
    """Without a measured factor, each micro-batch's own scale is taken out."""
    squares = other(term(10, 64 * 0.01), "MseLossBackward0")
    step = record([squares, term(10, 0.03)], post_factor=None)
    step.micro_batches[0].scale = 64.0
    listed = facts(step).objectives
    assert [r.ledger.entries[0].term for r in listed[:2]] == [
        "NllLossBackward0#0",
        "MseLossBackward0#0",
    ]


def test_two_terms_on_one_head_are_parts_or_tasks_and_more_are_parts() -> None:
    two = [term(10, 0.05, head=1), term(30, 0.01, head=1)]
    assert shown(objectives(two)) == [
        ("main", "tokens", 40, 0.8),
        ("part", "tokens", 10, 0.5),
        ("part", "tokens", 30, 0.3),
    ]
    assert shown(objectives([*two, term(5, 0.04, head=1)])) == [("main", "tokens", 45, 1.0)]


def test_losses_of_one_kind_on_several_heads_are_one_objective_too() -> None:
    heads = [term(10, 0.05, head=1), term(30, 0.01, head=2)]
    extra = other(term(5, 0.04), "MseLossBackward0", head=3)
    assert [r[0] for r in shown(objectives(heads))] == ["main", "main", "kind"]
    assert shown(objectives([*heads, extra]))[-2:] == [
        ("kind", "tokens", 40, 0.8),
        ("all", "tokens", 45, 1.0),
    ]


def test_the_factor_after_backward_is_in_every_objective() -> None:
    assert shown(objectives(term(10, 0.1), post_factor=0.5)) == [("main", "tokens", 10, 0.5)]


def test_an_objective_is_fair_only_if_it_is_even_and_its_balance_is_the_scale() -> None:
    def objective(sent: StepRecord) -> Objective:
        return facts(sent).objectives[0]

    even = objective(record([term(10, 0.2), term(10, 0.2)]))
    assert even.is_even(1e-3)
    assert not even.is_fair(1e-3, 1.0)
    assert even.is_fair(1e-3, 4.0)
    uneven = objective(record([term(10, 0.02), term(10, 0.08)]))
    assert uneven.ledger.balance == pytest.approx(1.0)
    assert not uneven.is_even(1e-3) and not uneven.is_fair(1e-3, 1.0)


def test_an_objective_at_the_very_tolerance_is_still_fair() -> None:
    def account(balance: float, misallocation: float) -> Objective:
        return Objective("main", "tokens", Ledger(8, balance, misallocation, ()))

    assert account(1.25, 0.25).is_fair(0.25, 1.0)
    assert account(2.5, 0.25).is_fair(0.25, 2.0)
    assert not account(1.3125, 0.25).is_fair(0.25, 1.0)
    assert not account(1.0, 0.3125).is_fair(0.25, 1.0)
