"""What a balance means, on single windows: the evidence that separates explanations."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from gradledger import records
from gradledger.records import Samples, StepRecord, Term
from gradledger_monitor.model.step_facts import StepFacts
from gradledger_monitor.rules.balance.counts import NO_COUNT
from gradledger_monitor.rules.balance.diagnosis import (
    ADDED_AGAIN,
    CHANGED,
    EPISODES,
    LAYER_BESIDE_PARTS,
    NO_ELEMENTS,
    NORMALISED_WEIGHTS,
    OF_SEQUENCES,
    OWN_LOSSES,
    PASSED_ON,
    WHOLE_WINDOW,
    diagnose,
)
from gradledger_monitor.rules.balance.divisors import DISCARDED
from gradledger_monitor.rules.balance.history import (
    CLIPPED_SCALED,
    COUNT_BESIDE,
    MOST_MICRO_BATCHES,
    OTHER_DIVISOR,
    SCALED_BY_LOOP,
)
from gradledger_monitor.rules.balance.masked import CONSTANT_SHARE, MASKED, MASKED_TOKENS
from gradledger_monitor.rules.balance.patterns import Closed, Diagnosis, Pattern
from gradledger_monitor.rules.balance.several_losses import PARTS_OR_TASKS
from gradledger_monitor.rules.reduction.token_weights_unequal import TokenWeightsUnequal
from gradledger_monitor.rules.reduction.weights_not_evaluated import BY_LOOP, COUNTS_MASKED
from gradledger_monitor.rules.rule import Window
from helpers.facts import accused, facts, judged, record, term

EVEN = (50, 50, 50, 50)


def even(balance: float, reduction: str = "mean", **run: Any) -> StepFacts:
    """Four equal micro-batches whose token weights add up to a balance."""
    return facts(record([term(n, balance / 200, reduction) for n in EVEN]), **run)


def alone(balance: float, tokens: int = 40, **term_fields: Any) -> StepFacts:
    """A window of one micro-batch."""
    return facts(record([term(tokens, balance / tokens, **term_fields)]))


def before(*balances: float, micro_batches: int = 4) -> list[Closed]:
    """Earlier windows that were off."""
    return [Closed(micro_batches, balance, 200.0, "pending") for balance in balances]


def first(facts: StepFacts, past: Sequence[Closed] = ()) -> Diagnosis:
    """The diagnosis of the objective with the most gradient weight."""
    return diagnose(facts, past)[0]


def not_measured(diagnosis: Diagnosis) -> str:
    """Why the pattern could not be measured."""
    assert diagnosis.pattern in ("unmeasured", "other_divisor")
    return diagnosis.reason


def pattern_and_ratio(facts: StepFacts, *past: Closed) -> tuple[str, float]:
    """The pattern, and the ratio that matched."""
    diagnosis = first(facts, past)
    return diagnosis.pattern, diagnosis.ratio


# ---------------------------------------------------------------------- by history


def test_one_window_that_nothing_explains_waits_for_the_next_and_shows_its_ledger() -> None:
    step = even(0.7)
    assert first(step, []) == Diagnosis("pending", "needs one more window", step.objective)


@pytest.mark.parametrize(
    ("divisors", "ranks", "pattern_before", "constant"),
    [
        ([4.0, 216.0], 2, "constant", 1.0),  # 4 by Accelerate, 2 by DDP
        ([4.0, 216.0], 1, "constant", 8.0),
        ([8.0, 216.0], 1, "constant", 1.0),
        ([8.0], 1, "constant", 8.0),  # it may be the count
        ([216.0], 1, "constant", 8.0),
        ([216.0], 1, "fair", 1.0),
    ],
)
def test_a_constant_that_undoes_other_divisions_is_no_intended_balance(
    divisors: list[float], ranks: int, pattern_before: Pattern, constant: float
) -> None:
    sums = [term(n, 0.4 / 200, "sum", coefficient=8.0, divisors=divisors) for n in EVEN]
    sync: Any = {"sync": "averaged"} if ranks > 1 else {}
    window = facts(*[record(sums, **sync)] * ranks)
    past = [Closed(4, 1.0, 200.0, pattern_before), Closed(4, 0.5, 200.0, "pending")]
    found = first(window, past)
    assert (found.pattern, found.constant) == ("wandering", constant)


def test_windows_that_were_fair_or_not_measured_are_no_history() -> None:
    fair = Closed(4, 1.0, 200.0, "fair")
    unknown = Closed(4, None, None, "unmeasured")
    assert pattern_and_ratio(even(0.7), fair, unknown) == ("pending", 1.0)


def test_a_balance_is_constant_up_to_ten_tolerances_and_wanders_beyond() -> None:
    step = even(0.8)
    assert pattern_and_ratio(step, *before(0.8)) == ("constant", 1.0)
    assert pattern_and_ratio(step, *before(200 / 252)) == ("constant", 1.0)
    assert pattern_and_ratio(step, *before(200 / 253)) == ("wandering", 1.0)
    assert pattern_and_ratio(step, *before(0.8, 200 / 253)) == ("wandering", 1.0)


def test_a_declared_scale_does_not_make_a_constant_balance_wander() -> None:
    assert pattern_and_ratio(even(1.4, declared_scale=2.0), *before(1.4)) == ("constant", 1.0)
    assert pattern_and_ratio(even(2.0, declared_scale=2.0)) == ("fair", 1.0)
    assert pattern_and_ratio(even(8.0, declared_scale=2.0)) == ("missing", 4)


def test_a_bare_mean_that_wanders_is_not_accused_of_it_and_not_called_right() -> None:
    by_hand = [dataclasses.replace(term(n, 0.7 / 200), kind="MeanBackward0") for n in EVEN]
    window = facts(record(by_hand))
    assert pattern_and_ratio(window, *before(0.7)) == ("pending", 1.0)
    assert pattern_and_ratio(window, *before(0.7, 0.7)) == ("constant", 1.0)
    assert not_measured(first(window, before(0.7, 0.5))) == OTHER_DIVISOR
    of_one_weight = Closed(4, 0.35, 100.0, "constant")
    assert pattern_and_ratio(window, of_one_weight) == ("pending", 1.0)
    assert pattern_and_ratio(window, of_one_weight, of_one_weight) == ("constant", 1.0)


@pytest.mark.parametrize(
    ("divisor", "balance", "pattern"),
    [(60, 1.0, "coefficient"), (67, 1.0, "other_divisor"), (60, 0.5, "other_divisor")],
)
def test_the_count_of_the_boxes_of_the_window_divides_the_classes_of_a_detector(
    divisor: float, balance: float, pattern: Pattern
) -> None:
    """The boxes of two images, 15 and 5 in each micro-batch, four numbers for each box."""

    def images(weight: float) -> list[Term]:
        classes = [term(n, weight, "sum", kind="SmoothBackward") for n in (380, 372)]
        boxes = [term(4 * n, weight, "sum", kind="SumBackward0", positions=n) for n in (15, 5)]
        for each in classes:
            each.size, each.elements, each.positions = 480, 480, 120
        return [*classes, *boxes]

    window = facts(record([images(balance / divisor)] * 3))
    past = [Closed(3, b, 2256.0, "other_divisor") for b in (9.0, 7.1)]
    assert first(window, past).pattern == pattern


def test_a_divisor_of_unknown_meaning_equals_the_count_by_chance() -> None:
    past = Closed(4, 0.5, 200.0, "other_divisor")
    by_hand = [dataclasses.replace(term(n, 1 / 200), kind="MeanBackward0") for n in EVEN]
    assert not_measured(first(facts(record(by_hand)), [past])) == OTHER_DIVISOR
    assert pattern_and_ratio(even(1.0), past) == ("fair", 1.0)


def test_a_divisor_of_unknown_meaning_equals_the_rows_of_a_micro_batch_by_chance() -> None:
    """As positive anchors do: the micro-batches then look like means that lack K."""

    def focal(divisor: int) -> StepFacts:
        loss = term(60, 1 / divisor, "sum", kind="BinaryCrossEntropyWithLogitsBackward0", size=60)
        rows = dataclasses.replace(loss, rows=20, positions=20, elements=60, of=loss.kind)
        return facts(record([rows, rows]))

    patterns = [d.pattern for d in windows(*map(focal, (19, 15, 17, 20, 14)))]
    assert patterns[2:] == ["other_divisor"] * 3


def test_means_times_their_counts_may_be_divided_by_a_count_that_is_a_kth_by_chance() -> None:
    """As by that of the last micro-batch, 28 of 112 tokens."""
    times_counts = [term(n, 1 / 28) for n in (26, 27, 31, 28)]
    assert pattern_and_ratio(facts(record(times_counts)))[0] == "pending"
    means = [term(n, 1 / n) for n in (26, 27, 31, 28)]
    assert pattern_and_ratio(facts(record(means))) == ("missing", 4.0)


def test_a_run_is_not_balanced_because_of_one_window_that_is_so_by_chance() -> None:
    steps = []
    for number, balance in enumerate((0.7, 1.0, 0.71, 1.1, 1.0), 1):
        loss = dataclasses.replace(term(50, balance / 100, "sum"), kind="MseLossBackward0")
        steps.append(facts(record([loss] * 2, number)))
    assert judged(steps).verdict == "incomplete"


def test_a_divisor_that_is_no_count_may_be_the_right_number_in_one_window_by_chance() -> None:
    windows = [even(balance, "sum") for balance in (0.7713, 0.8517, 1.2931, 1.0)]
    for number, window in enumerate(windows, 1):
        window.step = number
    result = judged(windows)
    assert (accused(result), result.verdict) == ({}, "incomplete")
    assert NO_COUNT in result.coverage["reduction.balance_off"]


@pytest.mark.parametrize(("off", "pattern"), [(0.008, "wandering"), (0.012, "constant")])
def test_a_balance_of_nearly_equal_weights_wanders_all_the_same(off: float, pattern: str) -> None:
    """Misallocation from 1% on is a finding of its own."""
    halves = [term(50, 0.8 * (0.5 + sign * off) / 50, "sum") for sign in (1, -1)]
    assert pattern_and_ratio(facts(record(halves)), *before(0.5))[0] == pattern


# ---------------------------------------------------------------------- short windows


def test_the_first_fair_window_shows_that_shorter_ones_before_it_are_divided_by_its_k() -> None:
    """With ``i % K == 0``, the first window holds one micro-batch."""
    step = even(1.0)
    assert pattern_and_ratio(step, *before(1 / 4, micro_batches=1)) == ("partial_before", 1 / 4)
    assert pattern_and_ratio(step, *before(1 / 3, micro_batches=1)) == ("fair", 1.0)
    assert pattern_and_ratio(step, *before(1.5, micro_batches=6)) == ("fair", 1.0)
    again = [*before(1 / 4, micro_batches=1), Closed(4, 1.0, 200.0, "partial_before")]
    assert pattern_and_ratio(step, *again) == ("fair", 1.0)


def test_a_first_window_of_two_micro_batches_may_be_the_rest_of_one_of_four() -> None:
    """Of a run that resumes in the middle of a window: not divided twice, before the next shows."""
    rest = facts(record([term(100, 1 / 400)] * 2))
    assert first(rest).pattern == "pending"
    assert first(rest, before(0.5, micro_batches=2)).pattern == "double"
    whole = facts(record([term(100, 1 / 400)] * 4))
    assert first(whole, before(0.5, micro_batches=2)).pattern == "partial_before"


def test_after_windows_that_are_off_by_the_ranks_their_k_divides_longer_ones_too() -> None:
    """Means over 4 ranks that are added up, and divided by the 2 of the first windows."""
    longer = facts(record([term(50, 2 / 50)] * 4))
    past = [Closed(2, 4.0, 200.0, "world")] * 2
    diagnosis = first(longer, past)
    assert (diagnosis.pattern, diagnosis.ratio, diagnosis.constant) == ("partial", 2, 4)
    undivided = [Closed(2, 4.0, 200.0, "constant")] * 2
    assert first(longer, undivided).pattern == "missing"


def rows_of(counts: Sequence[int], divisor: int) -> StepFacts:
    """A masked sum over each of 20 rows, whose mean a number divides."""
    terms = [term(count, 1 / 20 / divisor, "none", size=200, rows=20) for count in counts]
    return facts(record([dataclasses.replace(each, kind="MseLossBackward0") for each in terms]))


def test_a_window_is_read_in_the_unit_in_which_those_before_it_were_fair() -> None:
    """Elements that are at risk, of which an example has any number: its tokens show nothing."""
    fair, past = rows_of([75, 85, 78, 73, 76], 5), list[Closed]()
    short = rows_of([69, 82], 5)
    assert first(short, past).objective.reading.unit == "tokens"  # type: ignore[union-attr]
    for _ in range(2):
        past.append(Window(fair, past).closed())
    window = Window(short, past)
    assert (window.balance.pattern, window.balance.ratio) == ("partial", 0.4)
    closed = window.closed()
    assert closed.balance == pytest.approx(0.4) and closed.unit == "rows"
    assert short.ledger is not None and short.ledger.balance == pytest.approx(0.4)


def test_a_constant_in_front_of_a_sum_shows_its_unit() -> None:
    """The square of the temperature, of a distillation that is divided by its sequences."""

    def distilled(constant: float) -> Diagnosis:
        fields: dict[str, Any] = {"size": 100, "rows": 6, "coefficient": constant}
        terms = [term(n, constant / 6 / 4, "none", **fields) for n in (55, 78, 49, 60)]
        each = [dataclasses.replace(t, kind="KlDivergence") for t in terms]
        return first(facts(record(each)))

    diagnosis = distilled(9.0)
    assert diagnosis.pattern == "coefficient" and diagnosis.objective is not None
    assert diagnosis.objective.reading.unit == "rows"
    # 1/K is no weight: what else divides the sum is not known
    assert distilled(0.25).objective.reading.unit == "tokens"  # type: ignore[union-attr]


def distilled_by(kl: float, ce: float, outer: float, rows: int = 8) -> StepFacts:
    """Four micro-batches of a divergence with T = 4 and of a cross entropy with a constant of 0.5.

    ``kl`` and ``ce`` are the divisors of the two besides their own counts.
    """
    divisors = [float(d) for d in (kl, rows) if d != 1]
    constant = outer * 16.0
    fields: dict[str, Any] = {"coefficient": constant, "outer_coefficient": outer, "head": 1}
    weight = constant / rows / kl
    far = term(rows, weight, "sum", elements=rows * 10, divisors=divisors, **fields)
    far = dataclasses.replace(far, kind="KlDivergence")
    fields = {"coefficient": 0.5, "divisors": [float(ce)] if ce != 1 else [], "head": 1}
    near = term(rows, 0.5 / rows / ce, "mean", undivided=ce == 1, **fields)
    return facts(record([[near, far]] * 4))


def test_the_heaviest_loss_may_be_the_one_that_k_does_not_divide() -> None:
    """With 8 rows, T**2 times a half is 8, which makes the weight of each row 1: no sum."""
    named = first(distilled_by(1, 4, 0.5))
    assert (named.pattern, named.ratio, named.constant) == ("missing", 4, 8.0)
    assert named.evidence == "8 is the constant that the loss is multiplied by"
    assert first(distilled_by(4, 4, 0.5)).pattern == "coefficient"
    # 4 = 16/4, or the square of a temperature: above 1, it is no share of a round number
    assert first(distilled_by(1, 4, 4.0)).pattern == "missing"
    # 0.25 may be the division by K
    assert first(distilled_by(1, 4, 0.25)).pattern == "coefficient"
    # with as many rows as micro-batches, the divisor may be K
    assert first(distilled_by(1, 4, 0.5, rows=4)).pattern != "missing"


def test_constants_that_add_up_to_one_contain_no_division_by_k() -> None:
    """Equal ones of as many losses as micro-batches may be a factor of their sum: that is 1/K."""

    def patterns(hard: float, outer: float, k: int = 4) -> list[str]:
        soft = outer * 4.0
        step = distillation(2, (hard,), soft=soft, outer=outer, divided=False)
        step = dataclasses.replace(step, micro_batches=step.micro_batches[:k])
        past = [Closed(k, soft * k, 8.0 * k, "pending")]
        return [d.pattern for d in diagnose(facts(step), past)]

    assert patterns(0.3, 0.7) == ["missing", "term_missing"]
    assert patterns(0.5, 0.5) == ["missing", "term_missing"]
    assert patterns(0.5, 0.5, k=2)[0] != "missing"
    assert patterns(0.3, 0.8)[0] == "constant"


def test_a_mean_over_the_entries_of_each_masked_position_leaves_no_unit_but_entries() -> None:
    """``(error.mean(-1) * mask).sum() / mask.sum() / K``, of a masked autoencoder.

    A sum over the entries, with the same divisors, counts positions.
    """

    def masked(entries: int) -> Diagnosis:
        def each(masked: int) -> Term:
            weight, size = 1 / 4 / masked / entries, 64 * 12
            shape: dict[str, Any] = {"size": size, "rows": 4, "positions": 64, "elements": 64}
            divisors = [4.0, float(masked)]
            outer = 1 / 4 / masked
            summed = term(masked * 12, weight, "none", divisors=divisors, **shape)
            return dataclasses.replace(summed, kind="SumBackward0", element_weight=outer)

        return first(facts(record([each(n) for n in (43, 51, 42, 56)])))

    by_entries, by_positions = masked(12), masked(1)
    assert (by_entries.pattern, by_positions.pattern) == ("fair", "fair")
    assert by_entries.objective is not None and by_positions.objective is not None
    assert by_entries.objective.reading.unit == "tokens"
    assert by_positions.objective.reading.unit == "positions"


def test_a_fair_window_of_one_micro_batch_shows_no_k() -> None:
    """Its mean is right, also where the means of four are added."""
    assert pattern_and_ratio(even(4.0), Closed(1, 1.0, 50.0, "fair")) == ("missing", 4)
    assert pattern_and_ratio(even(2.0), Closed(2, 1.0, 50.0, "fair")) == ("partial", 2.0)


# ---------------------------------------------------------------------- counts


def test_the_count_of_an_earlier_window_is_named_at_the_first_window_that_shows_it() -> None:
    fair = Closed(4, 1.0, 160.0, "fair", unit="tokens")
    assert pattern_and_ratio(even(1.25, "sum"), fair) == ("stale", 1.25)
    assert pattern_and_ratio(even(1.25, "sum"), fair._replace(unit="rows")) == ("pending", 1.0)
    assert pattern_and_ratio(even(1.25, "sum")) == ("pending", 1.0)
    assert pattern_and_ratio(even(1.25), fair) == ("pending", 1.0)  # a mean holds its own count
    assert pattern_and_ratio(even(1.3, "sum"), fair) == ("pending", 1.0)
    since = [fair, Closed(4, 0.5, 80.0, "stale")]
    assert pattern_and_ratio(even(1.25, "sum"), *since) == ("stale", 1.25)
    assert pattern_and_ratio(even(1.25, "sum"), fair, fair) == ("stale", 1.25)
    constant = Closed(4, 0.5, 80.0, "wandering")  # before any window had this count
    assert pattern_and_ratio(even(1.25, "sum"), constant, fair)[0] == "wandering"
    assert pattern_and_ratio(even(1.25, "sum"), fair, *before(0.5))[0] == "wandering"


def test_the_count_of_most_windows_is_named_in_each_one_that_has_another() -> None:
    """A constant divisor, which is the count of full windows, and not of an epoch's last one."""
    full, short = Closed(4, 1.0, 160.0, "fair", unit="tokens"), Closed(4, 1.25, 200.0, "stale")
    assert pattern_and_ratio(even(1.25, "sum"), full, full, short, full) == ("stale", 1.25)
    assert pattern_and_ratio(even(1.25, "sum"), short, full)[0] != "stale"  # as often by chance


def test_a_division_by_one_micro_batch_more_or_less_is_named() -> None:
    def window(balance: float, *divisors: float, of: int = 4, **fields: Any) -> StepFacts:
        terms = [term(50, balance / 50 / of, divisors=list(divisors), **fields) for _ in range(of)]
        return facts(record(terms))

    assert pattern_and_ratio(window(4 / 3, 3), *before(4 / 3)) == ("partial", 4 / 3)
    assert pattern_and_ratio(window(4 / 5, 5), *before(4 / 5)) == ("partial", 4 / 5)
    assert pattern_and_ratio(window(4 / 5, 5), *before(3 / 5, micro_batches=3))[0] == "partial"
    assert pattern_and_ratio(window(4 / 5, 5))[0] == "pending"
    for other in (
        window(4 / 5),  # not written
        window(4 / 6, 6),  # may be a weight
        window(4 / 5, 5, rows=5),  # a count of what the micro-batch holds
        window(2 / 3, 3, of=2, reduction="sum"),
    ):
        wrong = Closed(other.micro_batches, other.ledger.balance, 200.0, "pending")  # type: ignore[union-attr]
        assert pattern_and_ratio(other, wrong)[0] != "partial"
    fair = Closed(4, 1.0, 200.0, "fair")  # K is right there
    assert pattern_and_ratio(window(4 / 5, 5), fair, *before(4 / 5))[0] != "partial"


def test_a_division_by_one_micro_batch_more_may_be_a_weight_so_that_it_is_information() -> None:
    steps = [
        facts(record([term(50, 1 / 250, divisors=[5.0])] * 4, number)) for number in range(1, 4)
    ]
    result = judged(steps)
    finding = next(f for f in result.findings if f.rule == "reduction.partial_window")
    assert finding.severity == "info"
    assert "If it is a weight, the division by K = 4 is missing" in finding.summary


def test_a_count_that_each_micro_batch_has_is_its_own_and_not_that_of_an_earlier_window() -> None:
    """After a first window of one micro-batch, of which both explanations say the same."""
    past = Closed.of(facts(record([term(6, 1 / 6, "sum")])), Diagnosis("fair"))
    later = facts(record([term(6, 1 / 6, "sum")] * 2))
    wrong = Closed.of(later, first(later, [past]))
    assert pattern_and_ratio(later, past, wrong) == ("missing", 2)
    longer = facts(record([term(7, 1 / 6, "sum"), term(5, 1 / 6, "sum")]))
    assert pattern_and_ratio(longer, past, wrong)[0] == "stale"


def test_a_division_by_all_positions_of_the_window_is_one_that_counts_padding() -> None:
    terms = [term(n, 1 / 300, "sum", size=n + 25) for n in EVEN]
    assert pattern_and_ratio(facts(record(terms))) == ("padding", 1.0)
    chance = [term(n, 1 / 400, "sum", size=2 * n) for n in EVEN]
    assert pattern_and_ratio(facts(record(chance))) == ("padding", 1.0)
    assert pattern_and_ratio(facts(record(chance)), *before(0.5))[0] != "padding"
    assert pattern_and_ratio(facts(record(chance)), *before(0.6)) == ("padding", 1.0)
    sizes = [n + ignored for n, ignored in zip(EVEN, (10, 40, 10, 40), strict=True)]
    means = [term(n, 1 / 300, "mean", size=size) for n, size in zip(EVEN, sizes, strict=True)]
    assert pattern_and_ratio(facts(record(means)))[0] != "padding"
    without = [term(n, 1 / 300, "sum") for n in EVEN]
    assert pattern_and_ratio(facts(record(without))) == ("pending", 1.0)


# ---------------------------------------------------------------------- steps too early


def test_chunks_of_one_cross_entropy_are_one_loss_and_several_means_may_be_tasks() -> None:
    def chunks(reduction: str) -> StepFacts:
        return facts(record([[term(10, 1 / 80, reduction, head=1) for _ in range(2)]]))

    past = before(1 / 4, micro_batches=1)
    assert pattern_and_ratio(chunks("sum"), *past) == ("early_step", 1 / 4)
    assert pattern_and_ratio(chunks("mean"), *past)[0] != "early_step"


def test_single_micro_batches_that_are_divided_are_steps_too_early() -> None:
    past = before(1 / 8, micro_batches=1)
    assert pattern_and_ratio(alone(1 / 8), *past) == ("early_step", 1 / 8)
    assert pattern_and_ratio(alone(1 / 8)) == ("pending", 1.0)


def test_that_an_optimizer_was_not_prepared_follows_only_from_what_accelerate_stated() -> None:
    """Steps that are too early by their division alone, of a cross entropy, do not show it."""
    quarter = facts(record([dataclasses.replace(term(40, 1 / 160), kind="MseLossBackward0")]))
    earlier = before(1 / 4, 1 / 4, micro_batches=1)
    cases: dict[Pattern, Pattern] = {"early_step": "constant", "unprepared": "unprepared"}
    for pattern, shown in cases.items():
        past = [closed._replace(pattern=pattern) for closed in earlier]
        assert first(quarter, past).pattern == shown


def test_a_division_is_read_as_one_by_micro_batches_up_to_the_most_there_may_be() -> None:
    most, more = 1 / MOST_MICRO_BATCHES, 1 / (MOST_MICRO_BATCHES + 1)
    assert pattern_and_ratio(alone(most, 40), *before(most)) == ("early_step", most)
    assert pattern_and_ratio(alone(more, 40), *before(more)) == ("constant", 1.0)
    assert pattern_and_ratio(alone(0.4), *before(0.4)) == (
        "constant",
        1.0,
    )  # no whole number divides so


def test_what_may_be_a_factor_of_the_loss_itself_is_no_step_too_early() -> None:
    past = before(1 / 8, micro_batches=1)
    assert pattern_and_ratio(alone(1 / 8, undivided=True), *past) == ("constant", 1.0)
    two = [term(20, 1 / 320, head=1), term(20, 1 / 320, head=1)]
    assert pattern_and_ratio(facts(record([two])), *past) == ("constant", 1.0)
    squares = dataclasses.replace(term(40, 1 / 320), kind="MseLossBackward0")
    assert pattern_and_ratio(facts(record([squares])), *past) == ("constant", 1.0)


def test_a_micro_batch_that_was_discarded_shows_an_accumulation() -> None:
    step = record([term(40, 1 / 320), term(40, 1 / 320)])
    step.micro_batches[1].fresh = True
    assert pattern_and_ratio(facts(step), *before(1 / 8)) == ("constant", 1.0)


def test_a_sum_of_ctc_may_be_divided_by_labels_which_are_no_unit_of_its_elements() -> None:
    speech = [dataclasses.replace(term(n, 0.3 / 200, "sum"), kind="CtcLossBackward0") for n in EVEN]
    assert pattern_and_ratio(facts(record(speech)), *before(0.3, 0.3)) == ("constant", 1.0)
    assert not_measured(first(facts(record(speech)), before(0.4, 0.3))) == OTHER_DIVISOR
    tokens = [term(n, 0.4 / 200, "sum") for n in EVEN]
    assert pattern_and_ratio(facts(record(tokens)), *before(0.5)) == ("wandering", 1.0)


def test_a_loss_that_counts_discarded_micro_batches_is_not_divided_twice() -> None:
    """Two of four micro-batches were zeroed; the loss is divided by four, once."""
    step = record([term(40, 1 / 160)] * 4)
    step.micro_batches[2].fresh = True
    assert not_measured(first(facts(step), before(1 / 2))) == DISCARDED
    twice = record([term(40, 1 / 320)] * 4)
    twice.micro_batches[2].fresh = True
    assert first(facts(twice), before(1 / 4)).pattern != "unmeasured"


# ---------------------------------------------------------------------- padding, sums, squares


@pytest.mark.parametrize("post_factor", [1.0, 0.5])
def test_a_divisor_that_counts_padding_is_named_whatever_follows_backward(
    post_factor: float,
) -> None:
    terms = [term(n, 1 / (64 * 4 * post_factor), "sum", size=64) for n in (40, 50, 60, 30)]
    assert pattern_and_ratio(facts(record(terms, post_factor=post_factor))) == ("padding", 1.0)


def over_ranks(weight: float, reduction: str = "sum", **more: Any) -> StepFacts:
    """Two averaged ranks with two micro-batches each, and one weight for every token."""
    windows = ((40, 50), (60, 30))
    return facts(
        *(
            record([term(n, weight, reduction, **more) for n in window], sync="averaged")
            for window in windows
        )
    )


@pytest.mark.parametrize("weight", [2.0, 1.0, 1 / 2])
def test_a_sum_that_nothing_or_only_ranks_and_micro_batches_divide_is_a_sum(weight: float) -> None:
    """Averaged over two ranks they are 1, a half for R or K, and a quarter for both."""
    assert pattern_and_ratio(over_ranks(weight, undivided=True)) == ("sum", 1.0)
    assert pattern_and_ratio(over_ranks(weight)) == ("pending", 1.0)


def test_a_weight_of_one_is_a_sum_only_if_the_tokens_of_every_window_have_it() -> None:
    """A sum over samples, one of which a window may hold by chance, is divided by a count."""
    one = facts(record([term(40, 1.0, "sum")]))
    assert pattern_and_ratio(one, Closed(1, 50.0, 50.0, "pending")) == ("sum", 1.0)
    assert pattern_and_ratio(one, Closed(1, 25.0, 50.0, "pending"))[0] == "wandering"


@pytest.mark.parametrize("weight", [4.0, 8.0, 1 / 4, 1 / 8, 1.5])
def test_a_sum_that_something_else_divides_is_none(weight: float) -> None:
    assert pattern_and_ratio(over_ranks(weight)) == ("pending", 1.0)


def test_tokens_that_weigh_a_half_without_ranks_are_no_sum_divided_by_two() -> None:
    """Of four micro-batches, 1 and 1/4 are plain."""
    tokens = [term(n, 1.0, "sum", undivided=True) for n in (40, 50, 60, 30)]
    for weight, pattern in ((1.0, "sum"), (1 / 4, "sum"), (1 / 2, "pending"), (2.0, "pending")):
        for each in tokens:
            each.weight = weight
        assert pattern_and_ratio(facts(record(tokens))) == (pattern, 1.0)


def test_a_mean_or_a_bare_loss_or_a_single_token_is_no_sum() -> None:
    assert pattern_and_ratio(alone(2.0, 2, reduction="mean")) == ("pending", 1.0)
    assert pattern_and_ratio(alone(2.0, 2, reduction="sum", undivided=True)) == ("sum", 1.0)
    for kind in ("MeanBackward0", "SumBackward0"):
        bare = dataclasses.replace(term(40, 1.0, "sum"), kind=kind, rows=None, positions=None)
        assert pattern_and_ratio(facts(record([bare]))) == ("pending", 1.0)
    for tokens, pattern in ((1, "pending"), (2, "sum")):
        loss = term(tokens, 1.0, "sum", undivided=True)
        step = facts(record([loss]), declared_scale=4.0)
        assert pattern_and_ratio(step) == (pattern, 1.0)


def test_a_mean_of_as_many_rows_as_micro_batches_is_no_sum_divided_by_these() -> None:
    """Nothing in the loop divides it, and each of its rows weighs 1/4."""
    rows = [term(4, 1 / 4, "none", undivided=True) for _ in range(4)]
    past = Closed(4, 4.0, 16.0, "pending")
    assert pattern_and_ratio(facts(record(rows)), past) == ("missing", 4.0)
    divided = [dataclasses.replace(each, undivided=False) for each in rows]
    assert pattern_and_ratio(facts(record(divided)), past) == ("sum", 1.0)
    # the lengths of sequences divide them below the mean, which no number does
    for divisor, named in ((0.0, ("missing", 4.0)), (4.0, ("sum", 1.0))):
        by_length = [dataclasses.replace(each, divisors=[divisor, 0.0]) for each in divided]
        assert pattern_and_ratio(facts(record(by_length)), past) == named


@pytest.mark.parametrize(("share", "pattern"), [(1.0, "padding"), (2.0, "pending")])
def test_padding_over_averaged_ranks_is_divided_by_all_their_micro_batches(
    share: float, pattern: str
) -> None:
    """A weight of R / (K R size), before the average."""
    assert pattern_and_ratio(over_ranks(2 * share / (4 * 128), size=128)) == (pattern, 1.0)


def test_padding_over_ranks_that_were_not_averaged_is_divided_by_the_own_micro_batches() -> None:
    padded = [term(n, 1 / 256, "sum", size=128) for n in (40, 50)]
    assert pattern_and_ratio(facts(*[record(padded, sync="none")] * 2)) == ("padding", 1.0)


def test_a_loss_whose_size_is_not_known_is_not_read_as_padded() -> None:
    padded = [term(n, 1 / 256, "sum", size=64) for n in (40, 50, 60, 30)]
    padded[0].size = None
    assert pattern_and_ratio(facts(record(padded))) == ("pending", 1.0)


def test_one_constant_in_front_of_the_loss_explains_the_balance_and_two_do_not() -> None:
    both = [term(n, 0.7 / 200, coefficient=0.7) for n in EVEN]
    assert pattern_and_ratio(facts(record(both))) == ("coefficient", 1.0)
    both[0].coefficient = 0.35
    assert pattern_and_ratio(facts(record(both))) == ("pending", 1.0)
    unknown = [term(n, 0.7 / 200, coefficient=None) for n in EVEN]
    assert pattern_and_ratio(facts(record(unknown))) == ("pending", 1.0)
    nothing = [term(n, 2 / 200, coefficient=0.0) for n in EVEN]
    assert pattern_and_ratio(facts(record(nothing))) == ("pending", 1.0)


# ---------------------------------------------------------------------- ranks, by hand


def combined(factor: float, weight: float, ranks: int = 2) -> StepFacts:
    """Ranks whose loop multiplies the sum of their gradients by a factor, one micro-batch each."""
    left = [[1.0, -2.0, 0.5], [3.0, 1.0, -0.25], [0.5, 0.5, 0.5]][:ranks]
    total = [factor * sum(column) for column in zip(*left, strict=True)]
    fields: dict[str, Any] = {"post_factor": None, "sync": "unknown", "collectives_after": 3}
    return facts(
        *(record([term(10, weight)], samples=Samples(mine, total), **fields) for mine in left)
    )


@pytest.mark.parametrize("k", [2, 4])
@pytest.mark.parametrize(("sync", "pattern"), [("averaged", "missing"), ("none", "constant")])
def test_a_mean_times_the_ranks_that_nothing_divides_lacks_a_division_by_k(
    k: int, sync: Any, pattern: str
) -> None:
    """A head that ignores the count, in a Trainer that undoes the average of DDP."""
    losses = [term(40, 2 / 40, coefficient=2.0)] * k
    windows = [facts(*[record(losses, n, sync=sync)] * 2) for n in (1, 2)]
    balance = windows[0].objectives[0].ledger.balance
    past = [Closed(k, balance, 80.0 * k, "pending")]
    found = first(windows[1], past)
    assert found.pattern == pattern
    assert pattern != "missing" or (found.ratio, found.constant) == (k, 2)
    of_both = f"divide, the gradient is {2 * k} times too large"
    assert (of_both in found.evidence) == (pattern == "missing")


def test_a_balance_that_wanders_is_not_the_world_size_where_both_are_equal_once() -> None:
    once = combined(1.0, 1 / 10, ranks=3)
    assert pattern_and_ratio(once, *before(2.4, micro_batches=1))[0] != "world"


@pytest.mark.parametrize(
    ("factor", "weight", "pattern", "ratio"),
    [
        (1 / 3, 1 / 10, "fair", 1.0),
        (1.0, 1 / 30, "fair", 1.0),
        (1.0, 1 / 10, "world", 3.0),  # summed, and each rank's loss is a mean already
        (1 / 9, 1 / 10, "world", 1 / 3),  # divided twice
        (1 / 9, 1 / 20, "pending", 1.0),  # the factor is off by R, the balance by more
        (1 / 2, 1 / 15, "fair", 1.0),
    ],
)
def test_a_factor_by_hand_that_is_off_by_the_world_size_with_the_balance_is_named(
    factor: float, weight: float, pattern: str, ratio: float
) -> None:
    diagnosis = first(combined(factor, weight, ranks=3), [])
    assert diagnosis.pattern == pattern
    assert diagnosis.ratio == pytest.approx(ratio)


@pytest.mark.parametrize(
    ("earlier", "pattern"), [("fair", "coefficient"), ("unmeasured", "world_or_weight")]
)
def test_a_factor_of_the_ranks_that_was_right_in_an_earlier_window_is_right(
    earlier: Any, pattern: str
) -> None:
    """The sum times the ranks is over the tokens of all; later, of some ranks only."""
    ranks = [record([term(10, 2 / 10, "sum", coefficient=2.0)], 2, sync="averaged")] * 2
    assert first(facts(*ranks), [Closed(1, 1.0, 20.0, earlier)]).pattern == pattern


@pytest.mark.parametrize("rest", [4, 1 / 4])
def test_a_sum_over_ranks_of_means_is_named_beside_a_wrong_division_by_k(rest: float) -> None:
    def of(reduction: str, past: Sequence[Closed] = ()) -> Diagnosis:
        left = [[1.0, -2.0, 0.5], [3.0, 1.0, -0.25]]
        total = [sum(column) for column in zip(*left, strict=True)]
        terms = [term(10, rest / 40, reduction)] * 4
        fields: dict[str, Any] = {"post_factor": None, "sync": "unknown", "collectives_after": 3}
        ranks = (record(terms, samples=Samples(x, total), **fields) for x in left)
        return first(facts(*ranks), past)

    assert (of("mean").pattern, of("mean").ratio) == ("world", 2)
    assert of("sum").pattern == "pending"
    assert of("sum", before(of("sum").objective.ledger.balance)).pattern == "world"  # type: ignore[union-attr]


def of_two_ranks(factor: float, weight: float, k: int = 4) -> StepFacts:
    """A loop that multiplies the sum of two ranks' gradients, of means in K micro-batches."""
    left = [[1.0, -2.0, 0.5], [3.0, 1.0, -0.25]]
    total = [factor * sum(column) for column in zip(*left, strict=True)]
    fields: dict[str, Any] = {"post_factor": None, "sync": "unknown", "collectives_after": 3}
    ranks = (record([term(10, weight)] * k, samples=Samples(x, total), **fields) for x in left)
    return facts(*ranks)


@pytest.mark.parametrize(
    ("factor", "weight", "k", "balance", "of_k", "right"),
    [
        (1 / 4, 1 / 10, 4, 2, "", "0.125"),  # K divides the sum over the ranks, and R does not
        (1 / 4, 1 / 10, 8, 4, ", and one of K = 8", "0.0625"),  # R divides twice, K never
        (1.0, 1 / 10, 4, 8, ", and one of K = 4", "0.125"),
        (1.0, 1 / 160, 4, 1 / 2, ", and one of K = 4", "2"),
    ],
)
def test_a_sum_over_ranks_is_as_much_too_large_as_its_balance_states(
    factor: float, weight: float, k: int, balance: float, of_k: str, right: str
) -> None:
    finding = judged([of_two_ranks(factor, weight, k)]).findings[0]
    times, size = max(balance, 1 / balance), "large" if balance > 1 else "small"
    assert finding.rule == "reduction.world_size"
    assert finding.title == (
        f"The gradient is {times:g} times too {size}: a factor of the world size{of_k}"
    )
    assert f"the right factor for this loss is {right}." in finding.summary
    assert finding.evidence["factor"] == pytest.approx(balance)
    assert finding.evidence["balance"] == pytest.approx(balance)


def test_a_penalty_that_every_rank_adds_is_named_where_its_coefficient_shows_it() -> None:
    def of(
        total: float,
        ranks: int,
        factor: float = 1.0,
        main: float = 1.0,
        coefficient: float | None = None,
    ) -> list[str]:
        penalty = Term("SumBackward0", "sum", penalty=True, elements=9, element_weight=total)
        penalty.coefficient = coefficient
        left = [[1.0, -2.0, 0.5], [3.0, 1.0, -0.25], [0.5, 0.5, 0.5], [2.0, 1.0, 3.0]][:ranks]
        at_step = [factor * sum(column) for column in zip(*left, strict=True)]
        fields: dict[str, Any] = {"post_factor": None, "sync": "unknown", "collectives_after": 3}
        loss = term(10, main / 10 / ranks / factor)
        sent = [record([[loss, penalty]], samples=Samples(x, at_step), **fields) for x in left]
        past = [Closed(1, main, 40.0, "pending")] * (main != 1.0)
        return [diagnosis.pattern for diagnosis in diagnose(facts(*sent), past)]

    assert of(0.01, ranks=4) == ["fair", "term_world"]
    assert of(0.01, ranks=4, main=12.0) == ["constant", "term_world"]
    assert of(0.01 / 4, ranks=4) == ["fair", "coefficient"]  # its share on each rank
    assert of(0.01, ranks=2) == ["fair", "coefficient"]  # may be the share of 0.02
    assert of(0.01, ranks=4, factor=1 / 4) == ["fair", "coefficient"]  # averaged
    assert of(0.01, ranks=2, coefficient=0.01) == ["fair", "term_world"]
    assert of(0.01 / 2, ranks=2, coefficient=0.01 / 2) == ["fair", "term_world"]
    assert of(0.01, ranks=2, factor=1 / 2, coefficient=0.01) == ["fair", "coefficient"]
    nearly = 0.01 * (1 - 2e-7)  # a rounding error below a power of ten
    assert of(nearly / 2, ranks=2) == ["fair", "coefficient"]


def test_with_as_many_ranks_as_micro_batches_the_factor_shows_which_of_both_it_is() -> None:
    """A balance of 3 with 3 micro-batches on 3 ranks: a sum over ranks, or a missing division."""

    def three(factor: float, divide: float) -> StepFacts:
        left = [[1.0, -2.0, 0.5], [3.0, 1.0, -0.25], [0.5, 0.5, 0.5]]
        applied = [factor * sum(column) for column in zip(*left, strict=True)]
        terms = [term(10, 1 / (10 * divide)) for _ in range(3)]
        fields: dict[str, Any] = {"post_factor": None, "sync": "unknown", "collectives_after": 3}
        return facts(*(record(terms, samples=Samples(mine, applied), **fields) for mine in left))

    assert pattern_and_ratio(three(1.0, 3)) == ("world", 3.0)
    assert pattern_and_ratio(three(1 / 9, 3)) == ("world", 1 / 3)
    assert pattern_and_ratio(three(1 / 3, 1)) == ("missing", 3)
    assert pattern_and_ratio(three(1 / 3, 9)) == ("double", pytest.approx(1 / 3))  # type: ignore[comparison-overlap]
    named = {f.rule: f.evidence["balance"] for f in judged([three(1 / 9, 3)]).findings}
    assert named == {"reduction.world_size": 0.333333}


@pytest.mark.parametrize(
    ("reduction", "pattern", "ratio"),
    [("sum", "world", 1 / 3), ("none", "world", 1 / 3), ("mean", "double", 1 / 3)],
)
def test_what_is_summed_cannot_be_divided_twice_by_as_many_micro_batches_as_there_are_ranks(
    reduction: str, pattern: str, ratio: float
) -> None:
    terms = [term(10, 1 / 90, reduction) for _ in range(3)]
    step = facts(*[record(terms, sync="averaged")] * 3)
    assert pattern_and_ratio(step, *before(1 / 3, micro_batches=3)) == (pattern, ratio)


def test_with_as_many_ranks_as_micro_batches_a_mean_times_its_share_is_off_by_the_ranks() -> None:
    shares = [term(n, 1 / 90, coefficient=n / 90) for n in (5, 10, 15)]
    assert pattern_and_ratio(facts(*[record(shares, sync="averaged")] * 3)) == ("world", 1 / 3)


def test_with_as_many_ranks_as_micro_batches_a_fair_window_shows_that_it_is_not_the_ranks() -> None:
    twice = facts(*[record([term(10, 1 / 10, "none")] * 2, sync="averaged")] * 2)
    earlier = before(2.0, micro_batches=2)
    assert pattern_and_ratio(twice, *earlier) == ("world", 2)
    assert pattern_and_ratio(twice, Closed(1, 1.0, 20.0, "fair"), *earlier) == ("missing", 2)


def test_a_short_first_window_does_not_change_what_a_number_is_attributed_to() -> None:
    """B = 1/2 of two micro-batches on two ranks; the one of the first window has B = 1/4."""
    step = facts(*[record([term(10, 1 / 40, "sum")] * 2, sync="averaged")] * 2)
    assert pattern_and_ratio(step, *before(1 / 2, micro_batches=2)) == ("world", 1 / 2)
    assert pattern_and_ratio(step, *before(1 / 4, micro_batches=1)) == ("world", 1 / 2)
    mean = facts(*[record([term(10, 1 / 40)] * 2, sync="averaged")] * 2)
    assert pattern_and_ratio(mean, *before(1 / 4, micro_batches=1)) == ("double", 1 / 2)


def test_a_first_window_of_one_micro_batch_does_not_show_the_ranks() -> None:
    """With ``i % K == 0``, it is a short one: B = 1/K, and K may be R."""
    windows = [
        facts(*[record([term(10, 1 / 20)] * k, number, sync="averaged")] * 2)
        for number, k in ((1, 1), (2, 2), (2, 1))
    ]
    assert pattern_and_ratio(windows[0]) == ("pending", 1.0)
    assert set(accused(judged(windows[:2]))) == {"reduction.partial_window"}
    assert set(accused(judged(windows[::2]))) == {"reduction.world_size"}


def test_a_short_first_window_that_k_divides_besides_does_not_hide_the_world_size() -> None:
    """B = 1/2 of three micro-batches on two ranks; the one of the first window has B = 1/6."""
    step = facts(*[record([term(10, 1 / 60, "sum")] * 3, sync="averaged")] * 2)
    assert pattern_and_ratio(step, *before(1 / 6, micro_batches=1)) == ("world", 1 / 2)
    assert pattern_and_ratio(step, *before(1 / 5, micro_batches=1)) == ("wandering", 1.0)


def test_a_short_window_of_a_double_division_is_no_other_mistake() -> None:
    """Each of 3 micro-batches is divided by 3 twice; so is the one of the last window."""
    past = before(1 / 3, 1 / 3, micro_batches=3)
    assert pattern_and_ratio(alone(1 / 9), *past) == ("double", 1 / 9)
    assert pattern_and_ratio(alone(1 / 8), *past)[0] == "wandering"


# ---------------------------------------------------------------------- parts, or tasks


def test_a_loss_that_only_together_with_its_parts_is_a_mean_is_not_measured() -> None:
    halves = [[term(20, 0.25 / 20, head=1), term(20, 0.25 / 20, head=1)] for _ in range(2)]
    assert first(facts(record(halves)), []).pattern == "fair"
    heads = [[term(20, 0.25 / 20, head=1), term(30, 0.25 / 30, head=2)] for _ in range(2)]
    assert not_measured(first(facts(record(heads)))) == PARTS_OR_TASKS


def test_the_mean_of_tasks_with_heads_is_fair_unless_a_second_division_by_k_may_be_in_it() -> None:
    def tasks(count: int, micro_batches: int, heads: int) -> Diagnosis:
        weight = 1 / count / micro_batches
        window = [
            [term(10 * n, weight / (10 * n), head=n % heads + 1) for n in range(1, count + 1)]
            for _ in range(micro_batches)
        ]
        return first(facts(record(window)), [])

    assert tasks(3, 2, heads=3).pattern == "coefficient"
    assert tasks(3, 3, heads=3).pattern == "unmeasured"
    assert not_measured(tasks(3, 2, heads=2)) == PARTS_OR_TASKS


OTHER_HEAD = (term(10, 0.01, head=2), term(10, 0.02, head=2))


@pytest.mark.parametrize("more", [(), OTHER_HEAD], ids=["one head", "two heads"])
def test_parts_that_weigh_differently_and_are_a_mean_together_are_not_measured(
    more: tuple[Term, ...],
) -> None:
    rest = 0.7 if more else 1.0
    parts = [term(20, 0.75 * rest / 20, head=1), term(30, 0.25 * rest / 30, head=1), *more]
    assert not_measured(first(facts(record([parts])))) == PARTS_OR_TASKS


def test_half_the_mean_squared_error_is_how_textbooks_write_it() -> None:
    halved = [dataclasses.replace(term(n, 0.5 / 200), kind="MseLossBackward0") for n in EVEN]
    assert pattern_and_ratio(facts(record(halved[:2]))) != ("coefficient", 1.0)
    assert pattern_and_ratio(facts(record(halved))) == ("coefficient", 1.0)


def test_a_window_without_any_weight_is_not_measured() -> None:
    assert first(facts(record([term(5, 0.0)])), []) == Diagnosis(
        "unmeasured", "no element has a weight"
    )


@pytest.mark.parametrize("contract", ["sequence", "sample"])
def test_another_contract_is_a_design_and_reported_as_such(contract: str) -> None:
    step = even(4.0, contract=contract)
    assert first(step, []) == Diagnosis("by_design", f"the run declares one weight per {contract}")


def test_a_running_total_of_losses_is_not_measured_and_chunks_are() -> None:
    """Each backward starts from one loss more; or a loss has as many chunks as its tokens need."""
    part = term(10, 1 / 30, head=1)
    added_again = facts(record([[part] * n for n in (1, 2, 3)]))
    assert not_measured(first(added_again)) == ADDED_AGAIN
    chunks = facts(record([[part] * n for n in (1, 3, 2)]))
    assert first(chunks).pattern == "pending"


def weighed(tokens: int, balance: float, **more: Any) -> Term:
    """A term whose tokens have different weights, as advantages give; their sum is ``balance``."""
    return term(tokens, 0.1, weight_min=0.0, weight_max=0.3, **more)


def test_weights_that_a_loss_gives_its_tokens_are_not_measured_without_its_elements() -> None:
    one = term(10, 0.09, weight_min=0.0, weight_max=0.3)
    of_both_signs = weighed(10, 1.0, weight_size=0.2)
    for losses in ([one], [of_both_signs], [term(10, 0.05, weight_min=0.0, weight_max=0.3)] * 2):
        assert not_measured(first(facts(record(losses)))) == NO_ELEMENTS


def test_weights_of_one_micro_batch_that_add_up_to_one_are_a_weighted_mean() -> None:
    assert first(facts(record([weighed(10, 1.0)]))).pattern == "fair"


@pytest.mark.parametrize(
    ("balance", "pattern"), [(1.0, "fair"), (3.0, "missing"), (1 / 3, "double"), (0.7, "pending")]
)
def test_elements_that_weigh_equally_show_a_division_whatever_the_loss_gives_its_tokens(
    balance: float, pattern: str
) -> None:
    """The mean over 12 elements, 10 of which have a gradient, in three micro-batches."""
    loss = weighed(10, balance, elements=12, element_weight=balance / 36)
    assert first(facts(record([loss] * 3))).pattern == pattern


def test_a_sum_whose_weights_add_up_to_the_same_may_be_a_weighted_mean() -> None:
    """Of n elements whose weights add up to ``total``, divided by K = 2."""

    def summed(n: int, total: float) -> Term:
        inside = {"weight_min": 0.1 / n, "weight_max": 0.9, "elements": n, "element_weight": 0.5}
        return term(n, total * 0.5 / n, "none", rows=2, **inside)

    normalised = facts(record([summed(10, 3.0), summed(30, 3.0)]))
    assert not_measured(first(normalised, before(100.0, micro_batches=2))) == NORMALISED_WEIGHTS
    of_data = facts(record([summed(10, 3.0), summed(30, 8.0)]))
    assert first(of_data, before(100.0, micro_batches=2)).pattern == "sum"


def test_weights_of_both_signs_are_normalised_by_their_absolute_values() -> None:
    """The sum over n elements; the signed weights add up to another number in each micro-batch."""

    def summed(n: int, total: float, absolute: float | None) -> Term:
        inside = {"weight_min": 0.1 / n, "weight_max": 0.9, "elements": n, "element_weight": 1.0}
        size = None if absolute is None else absolute / n
        return term(n, total / n, "none", weight_size=size, **inside)

    normalised = facts(record([summed(10, -0.3, 1.0)]))
    assert first(normalised, before(30.0, micro_batches=1)).pattern == "fair"
    of_data = facts(record([summed(10, -0.3, 4.0)]))
    assert first(of_data, before(30.0, micro_batches=1)).pattern != "fair"


def test_a_divisor_that_is_no_whole_number_may_be_a_weight_of_the_data() -> None:
    """A loss over its detached value, or times the ratio of two values."""
    assert pattern_and_ratio(even(0.8), *before(0.5))[0] == "wandering"  # 250, after 400
    assert not_measured(first(even(0.7), before(0.8))) == NO_COUNT  # 285.7
    assert not_measured(first(facts(record([term(16, 0.6 / 16)])), before(0.7))) == NO_COUNT
    halves = facts(record([term(10, 1 / 35), term(10, 1 / 35)]))
    assert pattern_and_ratio(halves, *before(0.5))[0] == "wandering"  # 70 over K


def test_a_divisor_that_wanders_is_named_unless_a_mask_may_be_in_the_count() -> None:
    for tokens, pattern in ((12, "wandering"), (10, "unmeasured")):
        loss = weighed(tokens, 0.75, elements=12, element_weight=0.75 / 24)
        assert pattern_and_ratio(facts(record([loss] * 2)), *before(0.5))[0] == pattern


def test_of_a_masked_sum_the_elements_with_a_gradient_may_be_what_it_divides_by() -> None:
    losses = [weighed(n, 1.0, elements=12, element_weight=1 / 15) for n in (10, 5)]
    assert first(facts(record(losses))).pattern == "fair"


@pytest.mark.parametrize(
    ("of", "divisor", "pattern"),
    [
        ("GatherBackward0", 12, "unmeasured"),
        ("ChunkedLogProbFunctionBackward", 12, "unmeasured"),
        ("ChunkedLogProbFunctionBackward", 10, "unmeasured"),
        ("ChunkedLogProbFunctionBackward", 8, "fair"),
        ("ChunkedLogProbFunctionBackward", 2, "missing"),
        (None, 12, "pending"),
    ],
)
def test_a_policy_loss_may_divide_by_positions_without_a_weight(
    of: str | None, divisor: int, pattern: str
) -> None:
    """12 positions, of which 8 have a weight: the others are padded, or their advantage is 0."""
    loss = term(8, 1 / (4 * divisor), "none", size=12, elements=12)
    loss = dataclasses.replace(loss, kind="SumBackward0", element_weight=loss.weight, of=of)
    assert first(facts(record([loss] * 4)), before(4.0) if divisor == 2 else ()).pattern == pattern
    if pattern == "unmeasured":
        assert first(facts(record([loss] * 4))).reason == MASKED


@pytest.mark.parametrize("coefficient", [None, 1.0])
def test_products_with_cached_gradients_may_add_up_without_a_division(
    coefficient: float | None,
) -> None:
    product = term(1, 1.0, "none", undivided=True, coefficient=coefficient, function_weight=1.0)
    product = dataclasses.replace(product, kind="DotBackward0", nonlinear=True, function=1)
    assert not_measured(first(facts(record([product] * 4)), before(4.0))) == PASSED_ON


def test_a_sum_with_weights_of_its_own_may_pass_on_cached_gradients() -> None:
    inside = {"weight_min": 0.1, "weight_max": 0.9, "elements": 12, "element_weight": 1.0}
    chunk = term(12, 0.5, "none", undivided=True, weight_size=0.6, **inside)
    chunk = dataclasses.replace(chunk, kind="SumBackward0")
    assert not_measured(first(facts(record([chunk] * 4)), before(48.0))) == PASSED_ON


@pytest.mark.parametrize(("most", "passes_on"), [(0.9, True), (1.0, False)])
def test_a_difference_of_sums_is_no_product_with_cached_gradients(
    most: float, passes_on: bool
) -> None:
    """Cross entropies that are added up, some with a negative weight; a bare sum has 1."""
    inside = {"weight_min": 0.1, "weight_max": most, "elements": 12, "element_weight": 1.0}
    chunk = term(12, 0.5, "none", undivided=True, weight_size=0.6, **inside)
    diagnosis = first(facts(record([chunk] * 4)), before(48.0))
    assert (diagnosis.reason == PASSED_ON) == passes_on


@pytest.mark.parametrize(
    ("past", "pattern"),
    [
        ((), "pending"),
        ((1 / 7.5,), "pending"),
        ((1 / 7.5, 1 / 7.5), "coefficient"),
        ((1 / 7.5, 1 / 8.5), "wandering"),
    ],
)
def test_a_written_divisor_is_a_weight_if_it_stays_the_same(
    past: tuple[float, ...], pattern: str
) -> None:
    loss = term(10, 1 / 300, divisors=[7.5, 4.0])
    assert first(facts(record([loss] * 4)), before(*past)).pattern == pattern


@pytest.mark.parametrize(("constant", "passes_on"), [(None, True), (1 / 12, False)])
def test_weights_of_one_sign_may_be_cached_gradients_if_nothing_divides_them(
    constant: float | None, passes_on: bool
) -> None:
    weight = constant or 1.0
    inside = {"weight_min": 0.1 * weight, "weight_max": 0.9 * weight, "elements": 12}
    chunk = term(12, 0.5 * weight, "none", undivided=True, element_weight=weight, **inside)
    chunk = dataclasses.replace(chunk, kind="SumBackward0", coefficient=constant)
    diagnosis = first(facts(record([chunk] * 4)), before(48.0))
    assert (diagnosis.reason == PASSED_ON) == passes_on


@pytest.mark.parametrize(
    ("sizes", "intended"),
    [
        ([(8, 8, 8), (8, 6, 8), (8, 8, 8), (8, 8, 6)], True),
        ([(8, 5, 9), (4, 9, 6), (8, 8, 6), (3, 7, 9)], False),  # of any size
    ],
)
def test_losses_times_their_batch_size_are_meant_so_if_one_batch_is_short(
    sizes: list[tuple[int, ...]], intended: bool
) -> None:
    def of(number: int, each: tuple[int, ...]) -> StepFacts:
        losses = [
            term(n, 1.0, samples=n, undivided=True, coefficient=float(n), outer_coefficient=n)
            for n in each
        ]
        return facts(record(losses, number))

    evaluation = judged([of(n, each) for n, each in enumerate(sizes, 1)])
    severities = {finding.severity for finding in evaluation.findings}
    assert (severities <= {"info"}) == intended


def policy_loss(elements: int, weight: float, least: float = 0.01) -> Term:
    """Log-probabilities, multiplied by advantages; the average size of their weights is given."""
    sizes = {"weight_min": least, "weight_max": 2 * weight, "weight_size": weight}
    inside = {"elements": elements, "element_weight": weight, "size": None, "rows": None}
    loss = term(elements, weight / 40, "none", **sizes, **inside)
    return dataclasses.replace(loss, kind="GatherBackward0")


@pytest.mark.parametrize(
    ("least", "may_be"),
    [(0.001, True), (0.0, False)],  # a mask leaves out the other elements
)
def test_each_micro_batch_of_a_policy_loss_may_be_an_episode_with_a_mean(
    least: float, may_be: bool
) -> None:
    steps = [
        facts(record([policy_loss(n, 1 / n / 4, least) for n in sizes], number))
        for number, sizes in enumerate(((9, 5, 12, 6), (4, 12, 3, 7), (8, 2, 9, 6)), 1)
    ]
    assert (EPISODES in judged(steps).coverage["reduction.token_weights_unequal"]) == may_be


@pytest.mark.parametrize(("rows", "is_reported"), [(None, False), (3, True)])
def test_a_masked_pick_may_have_the_mean_of_one_sequence(
    rows: int | None, is_reported: bool
) -> None:
    def masked(tokens: int) -> Term:
        loss = policy_loss(tokens, 1 / tokens / 4)
        loss = dataclasses.replace(loss, divisors=[4.0, tokens], positions=None, weight_size=None)
        return dataclasses.replace(loss, size=tokens + 2, elements=tokens + 2, rows=rows)

    steps = [
        facts(record([masked(n) for n in sizes], number))
        for number, sizes in enumerate(((9, 5, 12, 6), (4, 12, 3, 7), (8, 2, 9, 6)), 1)
    ]
    result = judged(steps)
    assert ("reduction.token_weights_unequal" in accused(result)) == is_reported
    assert (OF_SEQUENCES in result.coverage["reduction.token_weights_unequal"]) != is_reported


def test_the_steps_of_an_episode_may_add_up() -> None:
    steps = [facts(record([policy_loss(n, 1 / 4) for n in sizes])) for sizes in EPISODE_LENGTHS]
    assert {d.reason for d in windows(*steps) if d.pattern != "pending"} == {EPISODES}


def test_a_step_of_an_episode_may_have_no_advantage() -> None:
    """As the one in the middle, where each step has one reward, and returns are normalised."""

    def of_zero(n: int) -> Term:
        loss = dataclasses.replace(policy_loss(n, 1.0), undivided=True)
        return dataclasses.replace(loss, size=n + 1, elements=n + 1)

    steps = [facts(record([[of_zero(n) for n in sizes]])) for sizes in EPISODE_LENGTHS]
    assert {d.reason for d in windows(*steps) if d.pattern != "pending"} == {EPISODES}


@pytest.mark.parametrize(
    ("heads", "is_episode"),
    [((1, 1, 1), True), ((None, None, None), True), ((1, 2, 3), False)],  # weights of three tasks
)
def test_single_steps_that_a_loop_adds_up_are_an_episode_and_not_balanced(
    heads: tuple[int | None, ...], is_episode: bool
) -> None:
    weights = (0.3, 1.7, 0.9)
    single = [term(1, w, head=head) for w, head in zip(weights, heads, strict=True)]
    steps = [facts(record([single], number)) for number in (1, 2, 3)]
    result = judged(steps)
    assert (EPISODES in result.coverage["reduction.token_weights_unequal"]) == is_episode
    assert (result.verdict == "incomplete") == is_episode


@pytest.mark.parametrize(
    ("second", "reduction", "evaluated"),
    [
        ((0.64, 0.8, 1.0), "mean", True),
        ((0.64, 0.8, 1.0), "none", False),  # as the log-probability of an action
        ((0.5, 1.2, 0.7), "mean", False),
        ((0.64, 0.8), "mean", False),
    ],
)
def test_iterations_that_every_micro_batch_weighs_alike_are_no_episode(
    second: tuple[float, ...], reduction: str, evaluated: bool
) -> None:
    """Beside a cross entropy, which is then evaluated, too."""
    iterations = [
        [term(1, w / 2, reduction, kind="SmoothL1LossBackward0", head=1) for w in weights]
        for weights in ((0.64, 0.8, 1.0), second)
    ]
    main = term(6, 1 / 6, undivided=True, head=2)
    (diagnosis, *_) = diagnose(facts(record([[main, *each] for each in iterations])), [])
    assert (diagnosis.reason != EPISODES) == evaluated
    assert (diagnosis.pattern != "unmeasured") == evaluated


EPISODE_LENGTHS = ((9, 5, 12, 6), (4, 12, 3, 7), (8, 2, 9, 6))


def by_returns(steps: int, weight: float, **more: Any) -> Term:
    """A loss of the steps of an episode, each times its return, which is positive."""
    ends = {"weight_min": 0.1 * weight, "weight_max": 1.9 * weight}
    inside = {"elements": steps, "element_weight": weight}
    return term(steps, weight, "none", **{**ends, **inside, **more})


@pytest.mark.parametrize(
    ("more", "may_be"),
    [
        ({}, True),
        ({"rows": 1}, False),  # a row of tokens, as of a padded batch
        ({"weight_min": 0.0, "size": 20, "elements": 20}, False),  # a mask leaves out others
    ],
)
def test_a_loss_that_weighs_its_elements_by_returns_may_be_of_episodes(
    more: dict[str, Any], may_be: bool
) -> None:
    def reasons(weight: Callable[[int], float]) -> dict[str, str]:
        steps = [
            facts(record([by_returns(n, weight(n), **more) for n in lengths], number))
            for number, lengths in enumerate(EPISODE_LENGTHS, 1)
        ]
        return judged(steps).coverage

    averaged, added_up = reasons(lambda n: 1 / n / 4), reasons(lambda n: 1.0)
    assert (EPISODES in averaged["reduction.token_weights_unequal"]) == may_be
    assert (EPISODES in added_up["reduction.unnormalised_sum"]) == may_be


def test_a_loss_that_weighs_its_elements_alike_is_of_no_episodes() -> None:
    """Nor is one of equal micro-batches, or with a short one beside equal ones."""
    alike = {"weight_min": 1.0, "weight_max": 1.0}
    for lengths, more in ((EPISODE_LENGTHS[0], alike), ((9, 9, 5, 5), {}), ((9, 9, 9, 4), {})):
        terms = [by_returns(n, 1.0, undivided=True, **more) for n in lengths]
        assert first(facts(record(terms))).pattern == "sum"


@pytest.mark.parametrize(
    ("factors", "is_reported"),
    [
        ((9.7, 2.1, 30.4, 5.5), False),  # the return of each episode
        ((4.0, 4.0, 4.0, 2.0), True),
        ((8.0, 12.0, 14.0, 10.0), True),  # rows of padded sequences, of which some are ignored
    ],
)
def test_means_that_the_loop_multiplies_by_no_count_may_be_weighed_by_the_data(
    factors: tuple[float, ...], is_reported: bool
) -> None:
    padded = (8, 12, 14, 10)
    batches = [
        term(n, factor / n / 4, coefficient=factor, rows=1, size=size)
        for factor, n, size in zip(factors, EPISODE_LENGTHS[0], padded, strict=True)
    ]
    result = judged([facts(record(batches, number)) for number in (1, 2, 3)])
    assert ("reduction.token_weights_unequal" in accused(result)) == is_reported
    assert (BY_LOOP in result.coverage["reduction.token_weights_unequal"]) != is_reported


def test_a_sum_that_is_multiplied_by_its_count_has_unequal_weights() -> None:
    """A framework weighs micro-batches by their shares of the samples, and the loss is a sum."""
    shares = [(n, n / 16) for n in (6, 6, 4)]
    terms = [term(n, share, "sum", coefficient=share, undivided=True) for n, share in shares]
    result = judged([facts(record(terms, number)) for number in (1, 2, 3)])
    assert "reduction.token_weights_unequal" in accused(result)


def test_episodes_of_one_step_each_may_add_up_until_two_are_equally_long() -> None:
    terms = [by_returns(n, 1.0, undivided=True) for n in (9, 5, 5, 5)]
    patterns = [
        d.pattern for d in windows(*[facts(record([t], i)) for i, t in enumerate(terms, 1)])
    ]
    assert patterns == ["unmeasured", "unmeasured", "unmeasured", "sum"]


@pytest.mark.parametrize(
    ("batches", "batch_size", "contract", "pattern"),
    [
        (1, 10, None, "unmeasured"),  # a dictionary of one batch for each domain
        (1, 10, "token", "missing"),
        (1, 30, None, "missing"),  # a batch in three parts
        (3, 10, None, "missing"),
        (1, None, None, "missing"),  # nothing shows the samples
        (None, None, None, "missing"),
    ],
)
def test_backwards_with_whole_batches_of_one_delivery_may_be_of_separate_losses(
    batches: int | None, batch_size: int | None, contract: Any, pattern: Pattern
) -> None:
    def diagnosis(share: float) -> Diagnosis:
        terms = [term(10, share / 10, samples=batch_size and 10)] * 3
        step = record(terms, batches=batches, batch_size=batch_size)
        return first(facts(step, contract=contract))

    assert diagnosis(1.0).pattern == pattern
    assert diagnosis(1 / 3).pattern == "fair"


def test_a_window_over_the_end_of_an_epoch_is_short_although_one_batch_was_counted() -> None:
    """The last batch of an iterator that is gone, and the first of the next one."""
    step = facts(record([term(10, 1 / 40, samples=10)] * 2, batches=1, batch_size=10))
    assert first(step).pattern == "unmeasured"
    assert pattern_and_ratio(step, Closed(4, 1.0, 40.0, "fair")) == ("partial", 1 / 2)


@pytest.mark.parametrize(
    ("loader_batches", "contract", "pattern"),
    [
        ([2, 2], None, "unmeasured"),
        ([1, 2], None, "unmeasured"),  # the first one was started again
        ([1, 1, 1, 1], None, "unmeasured"),
        ([2, 2], "token", "missing"),
        ([1, 3], None, "missing"),  # a mixture, of which each batch is drawn at random
        ([4, 4], None, "missing"),  # labelled and unlabelled examples in each micro-batch
        ([1, 1, 1], None, "missing"),
        ([], None, "missing"),
    ],
)
def test_backwards_with_a_loader_for_each_may_be_of_separate_losses(
    loader_batches: list[int], contract: Any, pattern: Pattern
) -> None:
    def diagnosis(share: float) -> Diagnosis:
        step = record([term(10, share / 10, samples=10)] * 4, loader_batches=loader_batches)
        return first(facts(step, contract=contract))

    assert diagnosis(1.0).pattern == pattern
    assert diagnosis(1 / 4).pattern == "fair"


@pytest.mark.parametrize(("left_out", "is_reported"), [(0, False), (1, True)])
def test_the_loss_of_a_critic_is_averaged_over_the_steps_of_the_policy_loss(
    left_out: int, is_reported: bool
) -> None:
    def critic(steps: int) -> Term:
        squares = term(steps, 1 / steps / 4, "none", elements=steps, element_weight=1 / steps / 4)
        return dataclasses.replace(squares, kind="MseLossBackward0")

    steps = [
        facts(record([[by_returns(n, 1 / n / 8), critic(n - left_out)] for n in lengths], number))
        for number, lengths in enumerate(EPISODE_LENGTHS, 1)
    ]
    assert ("reduction.token_weights_unequal" in accused(judged(steps))) == is_reported


@pytest.mark.parametrize(
    ("calls", "wrapper", "expected"),
    [
        ((1, 2), None, "unmeasured"),  # real, fake
        ((1, 2, 1, 2), None, "unmeasured"),
        ((1, 1), None, "missing"),
        ((1, 1, 2), None, "missing"),  # the last one separate
        ((1, 2), "no_sync", "missing"),
        ((None, None), None, "missing"),
    ],
)
def test_backwards_at_several_lines_may_be_separate_losses(
    calls: tuple[int | None, ...], wrapper: Any, expected: Pattern
) -> None:
    step = record([term(10, 1 / 10)] * len(calls))
    for micro_batch, call in zip(step.micro_batches, calls, strict=True):
        micro_batch.call, micro_batch.wrapper = call, wrapper
    step.micro_batches[-1].wrapper = wrapper and "sync"
    assert first(facts(step)).pattern == expected
    assert first(facts(step, contract="token")).pattern == "missing"  # declared to be one loss


def test_the_dot_product_of_a_loss_that_is_divided_by_k_is_fair() -> None:
    product = term(1, 0.25, "none", function_weight=0.25)
    product = dataclasses.replace(product, kind="DotBackward0", nonlinear=True, function=1)
    assert first(facts(record([product] * 4))).pattern == "fair"


def gated(divisors: list[float], weight: float = 1.0, tokens: int = 24) -> Term:
    """A cross entropy times a gate that the model computes from the same data."""
    loss = term(tokens, weight / 60, divisors=divisors, function_weight=weight)
    return dataclasses.replace(loss, nonlinear=True, function=1)


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        (gated([]), "missing"),
        (gated([4.0]), "fair"),  # gate * (loss / 4)
        (gated([8.0]), "missing"),
        (gated([4.0], weight=1 / 4), "fair"),  # (gate * loss) / 4
        (gated([4.0, 4.0], weight=1 / 4), "unmeasured"),
        (gated([4.0], tokens=4), "unmeasured"),  # 4 may be the number of tokens
    ],
)
def test_k_may_divide_a_loss_inside_its_product_with_a_gate(loss: Term, expected: Pattern) -> None:
    step = facts(record([loss] * 4))
    assert [d.pattern for d in windows(step, step, step)] == [expected] * 3


def test_a_shorter_window_of_products_with_a_gate_is_divided_by_the_usual_k() -> None:
    whole, short = (facts(record([gated([4.0])] * k)) for k in (4, 3))
    assert [d.pattern for d in windows(whole, whole, short)] == ["fair", "fair", "unmeasured"]


@pytest.mark.parametrize(
    ("losses", "consecutive", "whole"),
    [
        ([5.1, 5.1], True, True),
        ([5.1, 5.1], False, False),
        ([5.1, 5.101], True, False),
        ([5.1, None], True, False),
        ([5.1], True, False),
    ],
)
def test_equal_contrastive_losses_of_a_window_may_be_one_loss_over_cached_features(
    losses: list[float | None], consecutive: bool, whole: bool
) -> None:
    window = record([term(20, 1 / 20, undivided=True)] * len(losses))
    for batch, loss in zip(window.micro_batches, losses, strict=True):
        batch.loss, batch.consecutive_target = loss, consecutive
    diagnosis = first(facts(window))
    assert (diagnosis.reason == WHOLE_WINDOW) == whole
    assert (diagnosis.pattern == "unmeasured") == whole


@pytest.mark.parametrize(
    ("weight", "indices", "losses", "targets", "pattern", "consecutive"),
    [
        (1 / 20, [0, 1], [5.1, 5.1], [1.0, 2.0], "fair", True),
        (1 / 20, [1, 0], [5.1, 5.1], [1.0, 2.0], "fair", True),
        (1 / 40, [0, 1], [5.1, 5.1], [1.0, 2.0], "double", True),
        (1 / 20, [0, 1], [5.1, 5.1], [1.0, 2.0], "unmeasured", False),  # or K losses
        (1 / 20, [0, 1], [5.1, 4.9], [1.0, 1.0], "unmeasured", False),  # one loss, with dropout
        (1 / 40, [0, 1], [5.1, 4.9], [1.0, 2.0], "fair", False),  # a part of a memory is renewed
        (1 / 20, [0, 1], [5.1, 4.9], [1.0, 1.0], "unmeasured", True),  # whose targets are 0, 1, ...
        (1 / 40, [0, 1], [5.1, 4.9], [1.0, 1.0], "unmeasured", True),
        (1 / 20, [0, 1], [5.1, 4.9], [None, None], "unmeasured", False),  # targets in no graph
        (1 / 40, [0, 1], [5.1, 4.9], [None, None], "unmeasured", False),
        (1 / 20, [0, 1], [5.1, 4.9], [1.0, 2.0], "missing", False),
        (
            1 / 20,
            [0, 0],
            [5.1, 5.1],
            [1.0, 2.0],
            "missing",
            False,
        ),  # a memory's features are constants
        (1 / 40, [1, 1], [5.1, 5.1], [1.0, 2.0], "fair", False),
    ],
)
def test_passes_of_one_loss_by_its_parts_add_up(
    weight: float,
    indices: list[int],
    losses: list[float],
    targets: list[float | None],
    pattern: str,
    consecutive: bool,
) -> None:
    terms = [term(20, weight, part=index, parts=2) for index in indices]
    window = record([[each] for each in terms])
    for batch, loss, target in zip(window.micro_batches, losses, targets, strict=True):
        batch.loss, batch.fingerprint = loss, target
        batch.consecutive_target = consecutive
    assert windows(facts(window), facts(window))[-1].pattern == pattern


@pytest.mark.parametrize("weight", [1 / 20, 1 / 40])
@pytest.mark.parametrize(("elements", "measured"), [(1, True), (72, False)])
def test_no_factor_is_right_for_parts_and_for_a_layer_beside_them(
    weight: float, elements: int, measured: bool
) -> None:
    terms = [term(20, weight, part=index, parts=2, beside_parts=elements) for index in (0, 1)]
    window = record([[each] for each in terms])
    for batch in window.micro_batches:
        batch.loss, batch.consecutive_target = 5.1, True
    diagnosis = windows(facts(window), facts(window))[-1]
    assert (diagnosis.pattern != "unmeasured") == measured
    assert (diagnosis.reason == LAYER_BESIDE_PARTS) != measured


@pytest.mark.parametrize(
    ("kind", "sizes", "divided", "pattern"),
    [
        ("MeanBackward0", (12, 12, 12, 12), True, "unmeasured"),
        ("MeanBackward0", (12, 16, 12, 20), True, "padding"),
        ("NllLossBackward0", (12, 16, 12, 20), True, "padding"),
        ("MeanBackward0", (12, 12, 12, 12), False, "constant"),
    ],
)
def test_a_mean_over_images_of_one_size_may_count_masked_pixels(
    kind: str, sizes: Sequence[int], divided: bool, pattern: str
) -> None:
    losses = []
    for size in sizes:
        weight = 1 / size / (len(sizes) if divided else 1)
        loss = term(8, weight, "none", size=size, elements=size, element_weight=weight)
        # what divides it is not known, or K does
        losses.append(dataclasses.replace(loss, kind=kind, undivided=False if divided else None))
    past = [] if divided else before(8 / 3, 8 / 3)
    diagnosis = first(facts(record(losses)), past)
    assert diagnosis.pattern == pattern
    assert (diagnosis.reason == MASKED) == (pattern == "unmeasured")


@pytest.mark.parametrize(
    ("reduction", "shares", "grows", "expected"),
    [
        ("none", (0.3, 0.3, 0.3), 0, "constant"),  # the hardest elements, as many in each batch
        ("none", (0.3, 0.26, 0.31), 0, "unmeasured"),  # masked at random
        ("none", (0.9, 0.7, 0.5, 0.3), 0, "unmeasured"),  # the confident ones, in batches of a size
        ("none", (0.9, 0.7, 0.5, 0.3), 10, "padding"),  # sequences of different lengths
        ("sum", (0.3, 0.3, 0.3), 0, "padding"),  # ignored targets
        ("sum", (0.3, 0.26, 0.31), 0, "padding"),
    ],
)
@pytest.mark.parametrize("kind", ["NllLossBackward0", "KlDivergence"])
def test_the_tokens_without_a_weight_are_padding_or_those_of_a_mask(
    kind: str, reduction: str, shares: Sequence[float], grows: int, expected: Pattern
) -> None:
    """One micro-batch in each window, divided by its 200 positions and more."""
    windows = []
    for index, share in enumerate(shares):
        size = 200 + grows * index
        weight = 1 / size
        loss = term(
            round(size * share), weight, reduction, size=size, rows=size, elements=size,
            element_weight=weight,
        )  # fmt: skip
        windows.append(facts(record([dataclasses.replace(loss, kind=kind)])))
    last = patterns_of(windows)[-1]
    assert last.pattern == expected
    assert (last.evidence == CONSTANT_SHARE) == (expected == "constant")


@pytest.mark.parametrize(("size", "expected"), [((64, 64, 64), True), ((64, 70, 90), False)])
def test_picked_log_probabilities_of_batches_of_one_size_may_be_masked(
    size: Sequence[int], expected: bool
) -> None:
    """Those with a confident target; of batches of different sizes, padding is masked."""
    windows = []
    for elements, tokens in zip(size, (40, 29, 31), strict=True):
        weight = 1 / elements
        loss = term(tokens, weight, "none", size=None, elements=elements, element_weight=weight)
        windows.append(facts(record([dataclasses.replace(loss, kind="GatherBackward0")])))
    last = patterns_of(windows)[-1]
    assert (last.reason == MASKED) == expected
    assert (last.pattern == "wandering") != expected


@pytest.mark.parametrize("masked", [False, True])
def test_targets_that_a_loss_of_each_token_ignores_are_no_mask(masked: bool) -> None:
    """A mean over all pixels of images of one size, of which an ignored class is a part."""
    windows = []
    for tokens in (40, 29, 31):
        loss = term(tokens, 1 / 64, "none", size=64, rows=64, elements=64, element_weight=1 / 64)
        loss.valid = tokens + 5 * masked
        windows.append(facts(record([loss])))
    last = patterns_of(windows)[-1]
    assert last.reason == (MASKED if masked else "")
    assert last.pattern == ("unmeasured" if masked else "padding")


@pytest.mark.parametrize("by_mask", [False, True])
@pytest.mark.parametrize("of_window", [False, True])
def test_a_divisor_may_count_the_targets_that_a_mask_leaves_out(
    by_mask: bool, of_window: bool
) -> None:
    """Hard ones are kept of the targets that the loss, or another mask, does not ignore."""
    records = []
    for step in range(3):
        losses, targets = [], [(12, 8 + step, 4), (30, 20, 9 + step), (8, 7, 5), (16, 11 - step, 6)]
        for size, valid, hard in targets:
            weight = 1 / sum(n for _, n, _ in targets) if of_window else 1 / (4 * valid)
            losses.append(term(hard, weight, "none", size=size, valid=size if by_mask else valid))
        records.append(record(losses, 1 + step))
    reason = patterns_of([facts(sent) for sent in records])[-1].reason
    assert reason == (MASKED_TOKENS if of_window else MASKED)  # which that contract decides
    declared = patterns_of([facts(sent, contract="token") for sent in records])
    assert declared[-1].pattern == ("wandering" if of_window else "other_divisor")


def test_all_positions_of_padded_batches_are_no_targets_that_a_mask_leaves_out() -> None:
    """The loss ignores nothing: the targets are padded with a class."""
    sizes = [(12, 8), (30, 20), (8, 7), (16, 11)]
    for whole in (None, sum(size for size, _ in sizes)):
        weights = [1 / (whole or 4 * size) for size, _ in sizes]
        pairs = list(zip(sizes, weights, strict=True))
        losses = [term(n, weight, "none", size=size, valid=size) for (size, n), weight in pairs]
        assert first(facts(record(losses))).pattern == "padding"


@pytest.mark.parametrize("extra", [0, 6])
def test_a_divisor_that_is_too_small_in_an_earlier_window_counts_no_more_elements(
    extra: int,
) -> None:
    windows = []
    for number, divisor in enumerate((34 + extra, 50, 42, 47), 1):
        counts = [(12, 8 + number), (30, 20 - number), (8, 4), (16, 6)]  # 38 in all
        losses = [term(n, 1 / divisor, "none", size=size, valid=size) for size, n in counts]
        windows.append(facts(record(losses, number)))
    last = patterns_of(windows)[-1]
    assert last.reason == (MASKED_TOKENS if extra else "")


def test_a_count_of_another_loss_that_divides_a_cross_entropy_is_a_choice_or_a_mistake() -> None:
    """The matched anchors of a detector, or the sentences of a second task."""
    windows = []
    for number in (1, 2, 3):
        counts = [(10 + number, 4), (20, 5 + number), (30, 7), (25 - 2 * number, 6)]
        whole = sum(rows for _, rows in counts)
        rows = [
            dataclasses.replace(term(n, 0.1 / whole, "sum", head=2), kind="MseLossBackward0")
            for _, n in counts
        ]
        tokens = [term(n, 1 / whole, "sum", head=1) for n, _ in counts]
        both = [list(pair) for pair in zip(tokens, rows, strict=True)]
        windows.append(facts(record(both, number)))
    assert patterns_of(windows)[-1].reason == COUNT_BESIDE


def test_the_size_of_micro_batches_of_selected_elements_shows_no_division_by_k() -> None:
    hard = term(6, 1 / 10, "none", size=10, rows=10, elements=6, element_weight=1 / 10)
    hard.divisors = [10.0]
    diagnosis = first(facts(record([hard] * 4)))
    assert (diagnosis.pattern, diagnosis.ratio) == ("missing", 4)
    hard.divisors = [4.0, 10.0]
    assert first(facts(record([hard] * 4))).pattern != "missing"


def test_a_mean_over_rows_of_padded_tokens_is_no_mask_of_one_size() -> None:
    """Two rows in each micro-batch, each divided by its padded length."""
    losses = []
    for size, tokens in ((10, 8), (4, 4), (22, 20), (8, 6)):
        weight = 1 / size / 4
        losses.append(term(tokens, weight, "none", size=size, elements=2, element_weight=1 / 8))
    assert first(facts(record(losses))).pattern == "padding"


FLAT, ROWS = "one number in each row", "eight numbers in each row"


@pytest.mark.parametrize(
    ("kinds", "shapes", "weighs", "k", "expected"),
    [
        (("NllLossBackward0", "MeanBackward0"), (FLAT, FLAT), False, 1, "coefficient"),
        (("NllLossBackward0", "MeanBackward0"), (FLAT, FLAT), False, 3, "coefficient"),
        (("NllLossBackward0", "MeanBackward0"), (FLAT, FLAT), False, 2, "unmeasured"),  # K twice?
        (("MeanBackward0", "MeanBackward0"), (FLAT, ROWS), False, 1, "coefficient"),
        (("MeanBackward0", "MeanBackward0"), (FLAT, ROWS), True, 1, "coefficient"),
        (("MeanBackward0", "MeanBackward0"), (FLAT, FLAT), False, 1, "unmeasured"),  # chunks?
        (("MeanBackward0", "MeanBackward0"), (ROWS, ROWS), False, 1, "unmeasured"),
    ],
)
def test_losses_of_different_kinds_or_dimensions_are_no_chunks_of_one_mean(
    kinds: tuple[str, str],
    shapes: tuple[str, str],
    weighs: bool,
    k: int,
    expected: Pattern,
) -> None:
    """Half of each of two means; the second one may weigh its elements."""
    losses = []
    for rows, kind, shape in zip((40, 48), kinds, shapes, strict=True):
        size, positions = (rows, 1) if shape is FLAT else (8 * rows, rows)
        own = {"weight_min": 1e-4, "weight_max": 1e-2} if weighs and shape is ROWS else {}
        more: dict[str, Any] = {"size": size, "elements": size, **own}
        more |= {"element_weight": 0.5 / size / k}
        more |= {"rows": rows, "positions": positions, "divisors": (2.0,)}
        loss = term(size, 0.5 / size / k, "none" if own else "mean", **more)
        losses.append(dataclasses.replace(loss, kind=kind))
    diagnosis = first(facts(record([losses] * k)))
    assert diagnosis.pattern == expected
    if weighs:  # of which one has a weight in front: 2 may be the micro-batches of another window
        losses[1].coefficient = 0.1
        assert first(facts(record([losses] * k)), before(0.5, 0.5)).pattern == "constant"
    if k == 1 and kinds[0] != kinds[1]:
        two_ranks = [record([losses] * k, sync="averaged")] * 2
        assert first(facts(*two_ranks)).pattern == "unmeasured"  # or the ranks divide once more


@pytest.mark.parametrize(
    ("k", "divisors", "balance", "expected"),
    [
        (4, [10.0], 0.4, "missing"),  # a mean of the losses of ten pairs of crops, on each of four
        (4, [10.0, 4.0], 0.1, "fair"),
        (4, [20.0], 0.4, "constant"),  # a weight of the author's, or another count
        (10, [10.0], 1.0, "fair"),  # K divides a sum of ten
    ],
)
def test_a_mean_of_losses_that_only_their_number_divides_lacks_a_division_by_k(
    k: int, divisors: list[float], balance: float, expected: Pattern
) -> None:
    weight = balance / k / 8
    losses = [term(8, weight, divisors=divisors, head=head) for head in range(10)]
    past = before(balance, balance, micro_batches=k)
    assert first(with_tasks([losses] * k, [1] * k), past).pattern == expected


def with_tasks(micro_batches: list[list[Term]], tasks: Sequence[int | None]) -> StepFacts:
    window = record(micro_batches)
    for micro_batch, task in zip(window.micro_batches, tasks, strict=True):
        micro_batch.task = task
    return facts(window)


@pytest.mark.parametrize(
    ("tasks", "changes"),
    [
        ([1, 4], {}),  # a backward for each of two tasks, with three heads each
        ([None, None], {}),
        ([1, 1], {"kind": "MeanBackward0"}),  # the outputs of critics, on real and on fake data
    ],
)
def test_means_of_the_losses_of_separate_tasks_add_up(
    tasks: list[int | None], changes: dict[str, Any]
) -> None:
    losses = [term(8, 1 / 24, divisors=[3.0], head=head, **changes) for head in range(3)]
    past = before(2 / 3, 2 / 3, micro_batches=2)
    assert first(with_tasks([losses] * 2, tasks), past).pattern == "constant"


def masked_mean(counted: int, size: int, kind: str, shape: tuple[int, int] = (1, 1)) -> StepFacts:
    """A window of one micro-batch: a mean over all elements, of which a mask leaves some out."""
    rows, positions = shape
    more = {"size": size, "rows": rows, "positions": positions, "elements": size}
    loss = term(counted, 1 / size, "none", element_weight=1 / size, undivided=True, **more)
    return facts(record([dataclasses.replace(loss, kind=kind)]))


def patterns_of(windows: Sequence[StepFacts]) -> list[Diagnosis]:
    """The diagnosis of each window, after those before it."""
    past: list[Closed] = []
    diagnoses = []
    for window in windows:
        diagnoses.append(first(window, past))
        past.append(Closed.of(window, diagnoses[-1]))
    return diagnoses


BCE = "BinaryCrossEntropyWithLogitsBackward0"
BY_DATA = [60, 221, 130, 289, 20, 240]  # of 300: as padding, or what a data set has labels for
BY_CHANCE = [151, 139, 160, 148, 155, 144]


@pytest.mark.parametrize(
    ("kind", "counts", "expected"),
    [
        (BCE, BY_DATA, "unmeasured"),
        (BCE, BY_CHANCE, "unmeasured"),
        (BCE, [150] * 6, "constant"),
        (BCE, [20, 60, 100, 140, 180, 220], "unmeasured"),
        (BCE, [150, 154, 158, 163, 168, 172], "unmeasured"),
        ("MeanBackward0", BY_DATA, "unmeasured"),
        ("MeanBackward0", BY_CHANCE, "unmeasured"),
        ("MeanBackward0", [150] * 6, "constant"),
    ],
)
@pytest.mark.parametrize("shape", [(300, 1), (10, 10)])
def test_a_mean_of_batches_of_one_size_may_count_masked_elements(
    kind: str, counts: list[int], expected: Pattern, shape: tuple[int, int]
) -> None:
    """In one dimension, a row is an element: no unit of a row makes it right."""
    diagnoses = patterns_of([masked_mean(n, 300, kind, shape) for n in counts])
    assert diagnoses[-1].pattern == expected
    assert "fair" not in {diagnosis.pattern for diagnosis in diagnoses}
    if expected == "constant":
        assert {d.pattern for d in diagnoses[:2]} <= {"pending", "unmeasured"}
        assert diagnoses[-1].evidence == CONSTANT_SHARE
    elif expected == "unmeasured":
        assert diagnoses[-1].reason == MASKED


@pytest.mark.parametrize(
    ("kind", "rows", "expected"),
    [
        ("MeanBackward0", 12, "padding"),
        ("MeanBackward0", None, "unmeasured"),
        (BCE, 12, "padding"),
        (BCE, None, "padding"),  # as many elements as tokens: sequences that were joined
    ],
)
def test_sequences_of_different_lengths_are_padded_but_in_one_dimension(
    kind: str, rows: int | None, expected: Pattern
) -> None:
    """If their share follows the data, it is a mistake to count masked elements."""
    sizes = [240, 360, 300, 348, 252, 324]
    windows = [
        masked_mean(n, size, kind, (rows or size, 12 if rows else 1))
        for n, size in zip(BY_DATA, sizes, strict=True)
    ]
    assert patterns_of(windows)[-1].pattern == expected


@pytest.mark.parametrize(
    ("smoothed", "head", "expected"),
    [
        ((30, 30), 1, "smoothing"),
        ((20, 25), 1, "coefficient"),  # it is masked, too
        ((30, 25), 1, "coefficient"),
        ((30, 30), 2, "coefficient"),  # of other logits
        ((30, 30), None, "coefficient"),
    ],
)
def test_a_smoothing_that_counts_what_its_cross_entropy_ignores_is_a_mistake(
    smoothed: tuple[int, int], head: int | None, expected: Pattern
) -> None:
    """Two micro-batches of 30 positions, of which 20 and 25 count: 45 divide everything."""
    batches = []
    for counted, also in zip((20, 25), smoothed, strict=True):
        hard = term(counted, 0.9 / 45, "sum", size=30, head=1, coefficient=0.9)
        soft = term(also, 0.1 / 45, "sum", size=30, head=head, coefficient=0.1)
        batches.append([hard, dataclasses.replace(soft, kind="LabelSmoothing")])
    patterns = [diagnosis.pattern for diagnosis in diagnose(facts(record(batches)), [])]
    together = smoothed == (20, 25)  # on the same tokens, with weights that add up to 1
    assert patterns == (["fair"] if together else ["coefficient", expected])


@pytest.mark.parametrize(
    ("hard", "soft", "expected"),
    [
        (0.9 / 45, 0.1 / 45, "smoothing"),
        (0.9 / 45, 0.1 / 60, "smoothing"),  # a mean over all positions
        (1 / 45, 0.1 / 45, "all_positions"),  # a regularisation towards equal probabilities
        (1 / 45, 0.5 / 60, "all_positions"),
        (0.9 / 45, 0.3 / 45, "all_positions"),
    ],
)
def test_a_smoothing_has_the_weight_that_its_cross_entropy_lacks(
    hard: float, soft: float, expected: Pattern
) -> None:
    """Two micro-batches of 30 positions, of which 20 and 25 count."""
    batches = []
    for counted in (20, 25):
        main = term(counted, hard, "sum", size=30, head=1, coefficient=hard * 45)
        also = term(30, soft, "sum", size=30, head=1, coefficient=0.1)
        batches.append([main, dataclasses.replace(also, kind="LabelSmoothing")])
    assert [d.pattern for d in diagnose(facts(record(batches)), [])][-1] == expected


@pytest.mark.parametrize(
    ("counted", "balance", "expected"),
    [
        ((20, 25), 1.0, "smoothing"),
        ((30, 30), 1.0, "fair"),  # nothing is ignored
        ((20, 25), 2.0, "missing"),  # that comes first
    ],
)
def test_a_smoothing_inside_a_cross_entropy_must_not_count_what_this_ignores(
    counted: Sequence[int], balance: float, expected: Pattern
) -> None:
    terms = [term(n, balance / 2 / n, size=30, smoothed=30, undivided=True) for n in counted]
    assert first(facts(record(terms))).pattern == expected


def test_a_smoothing_inside_a_cross_entropy_is_named_with_its_positions() -> None:
    (found,) = judged([facts(record([term(20, 1 / 20, size=30, smoothed=30)]))]).findings
    assert (found.rule, found.severity) == ("reduction.wrong_denominator", "warning")
    assert "has 20 tokens" in found.summary and "of 30 positions: 33.3% of them" in found.summary


def beside(kind: str, counted: Sequence[int], positions: Sequence[int], also: int) -> StepFacts:
    """A window of a cross entropy that ignores positions, and a loss of all classes beside it.

    ``also`` is what the other loss leaves out in each micro-batch.
    """
    tokens, all_of_them = sum(counted), sum(positions)
    batches = []
    for few, many in zip(counted, positions, strict=True):
        main = term(few, 1 / tokens, "sum", size=many, head=1)
        other = term(many - also, 0.1 / all_of_them, "sum", size=many, head=1, coefficient=0.1)
        batches.append([main, dataclasses.replace(other, kind=kind)])
    return facts(record(batches))


def last_of(windows: Sequence[StepFacts]) -> Diagnosis:
    """The diagnosis of the further loss in the last of some windows."""
    past: list[Closed] = []
    for each in windows:
        window = Window(each, past)
        past.append(window.closed())
    return window.diagnoses[1]


@pytest.mark.parametrize(
    ("windows", "smoothing", "divergence"),
    [
        # batches of many lengths, and a share that follows the data, are padded
        ([((200, 250, 60), (300, 280, 120))], "smoothing", "all_positions"),
        ([((200,), (300,)), ((250,), (280,)), ((60,), (120,))], "smoothing", "all_positions"),
        # of many lengths: texts without padding, of which tokens are drawn
        ([((20, 25, 9), (30, 28, 12))], "all_positions", "all_positions"),
        # of one length: prompts, or as many tokens as are drawn for a batch
        ([((300, 450, 100), (500, 500, 500))], "all_positions", "all_positions"),
        # a share that is drawn, as of masked language modelling, or always the same
        ([((150, 148, 155), (1000, 1000, 1000))], "all_positions", "coefficient"),
        ([((20,), (30,)), ((20,), (30,))], "all_positions", "coefficient"),
        # nothing is ignored in the last window
        ([((20,), (30,)), ((25,), (28,)), ((12,), (12,))], "coefficient", "coefficient"),
    ],
)
def test_positions_that_a_cross_entropy_ignores_are_padding_if_their_share_follows_the_data(
    windows: Sequence[tuple[Sequence[int], Sequence[int]]], smoothing: Pattern, divergence: Pattern
) -> None:
    """A smoothing must not count them. A distillation may, or not: that is not known."""
    for kind, expected in (("LabelSmoothing", smoothing), ("KlDivergence", divergence)):
        assert last_of([beside(kind, *each, also=0) for each in windows]).pattern == expected


def test_a_divergence_that_left_out_positions_before_is_masked() -> None:
    """In a batch without padding it has nothing to leave out, and MLM still ignores tokens."""
    masked = beside("KlDivergence", (20, 25), (30, 28), also=2)
    whole = beside("KlDivergence", (20, 25, 9), (30, 28, 12), also=0)
    assert last_of([whole]).pattern == "all_positions"
    assert last_of([masked, whole]).pattern == "coefficient"


def masked_beside(
    counted: Sequence[int],
    positions: Sequence[int],
    divisors: Sequence[float],
    coefficient: float = 0.5,
    also: int = 0,
    step: int = 1,
) -> StepFacts:
    """A window of a cross entropy that ignores positions, and a loss masked alike beside it.

    ``also`` is what the other loss leaves out besides in each micro-batch.
    """
    batches = []
    for few, many, divisor in zip(counted, positions, divisors, strict=True):
        main = term(few, 1 / sum(counted), "sum", size=many, head=1)
        weight, left = coefficient / divisor, few - also
        other = term(left, weight, "none", size=many, elements=many, coefficient=coefficient)
        batches.append([main, dataclasses.replace(other, kind="MeanBackward0")])
    return facts(record(batches, step))


PADDED = [((300,), (480,)), ((250,), (500,)), ((410,), (460,)), ((120,), (300,))]


@pytest.mark.parametrize(
    ("windows", "expected"),
    [
        (PADDED, "term_padding"),
        ([((300, 250, 410), (480, 500, 460))], "term_padding"),  # each is weighted by its tokens
        (PADDED[:2], "coefficient"),  # two sizes are those of a loader whose last batch is short
        ([(few, (500,)) for few, _ in PADDED], "coefficient"),  # one size: a constant divisor
        ([((148,), (1000,)), ((210,), (1400,)), ((95,), (610,))], "coefficient"),  # it is drawn
        ([*PADDED, ((200,), (200,))], "coefficient"),  # nothing is ignored in the last window
    ],
)
def test_a_loss_masked_as_the_cross_entropy_ignores_must_not_divide_by_the_padding(
    windows: Sequence[tuple[Sequence[int], Sequence[int]]], expected: Pattern
) -> None:
    """If sizes and shares differ, as of padded batches."""
    padded = []
    for few, many in windows:
        weighted = [size * sum(few) / own for own, size in zip(few, many, strict=True)]
        padded.append(masked_beside(few, many, weighted))
    assert last_of(padded).pattern == expected


def test_a_masked_loss_with_another_divisor_does_not_count_padding() -> None:
    """The tokens, a constant; a coefficient that changes; and other elements than the tokens."""
    tokens = [masked_beside(few, many, [sum(few)]) for few, many in PADDED]
    constant = [masked_beside(few, many, [600]) for few, many in PADDED]
    annealed = [
        masked_beside(few, many, many, 0.5 * 0.9**i) for i, (few, many) in enumerate(PADDED)
    ]
    for windows in (tokens, constant, annealed):
        assert last_of(windows).pattern == "coefficient"
    others = [masked_beside(few, many, many, also=1) for few, many in PADDED]
    assert last_of(others).pattern == "coefficient"


def test_a_loss_that_divides_by_the_padding_is_named_beside_the_cross_entropy() -> None:
    """Its weight with the right divisor is stated, and its unequal weights are no other finding."""
    windows = [masked_beside(*each, each[1], step=i) for i, each in enumerate(PADDED, 1)]
    (found,) = judged(windows).findings
    assert (found.rule, found.severity) == ("reduction.wrong_denominator", "warning")
    assert "including those that the cross entropy ignores" in found.summary
    assert "0.2 instead of 0.5" in found.summary


def test_a_further_loss_that_counts_masked_elements_is_not_evaluated() -> None:
    """It may be intended, so that the verdict is balanced, and states the reason."""
    window = masked_beside((300,), (500,), (500,))
    outcome = TokenWeightsUnequal().evaluate(Window(window, []))
    assert outcome.status == "ok" and f"({COUNTS_MASKED})" in str(outcome.reason)
    evaluation = judged([window])
    assert evaluation.verdict == "balanced" and not evaluation.findings


def test_a_loss_that_may_count_padding_leaves_the_run_unmeasured() -> None:
    """Also if it seemed fair in an earlier window, and the main loss is fair in all of them."""
    drawn = beside("KlDivergence", (150, 148), (1000, 1000), also=0)
    padded = beside("KlDivergence", (300, 450, 100), (500, 500, 500), also=0)
    evaluation = judged([drawn, padded])
    assert evaluation.verdict == "incomplete" and not evaluation.findings
    assert "counts all positions" in evaluation.coverage["reduction.wrong_denominator"]


def test_a_wandering_divisor_is_compared_without_the_constant_of_the_loss() -> None:
    """Half of a divergence over 30 elements each, divided by another count."""
    windows = []
    for number, count in enumerate((40, 50, 45), 1):
        half = term(30, 0.5 / count, "sum", coefficient=0.5)
        windows.append(facts(record([dataclasses.replace(half, kind="KlDivergence")], number)))
    (found,) = judged(windows).findings
    assert found.rule == "reduction.wrong_denominator"
    assert "instead of 0.5: the divisor is 45 besides the constant 0.5" in found.summary


@pytest.mark.parametrize("divisor", ["all", "counted"])
def test_the_positions_that_a_mask_leaves_out_are_none(divisor: str) -> None:
    """The five entries of each position are added up; a mask leaves out whole positions."""
    windows = []
    for n in BY_DATA:
        weight = 1 / (n if divisor == "counted" else 300)
        more = {"size": 1500, "rows": 12, "positions": 300, "elements": 300}
        loss = term(5 * n, weight, "none", element_weight=weight, **more)
        windows.append(facts(record([dataclasses.replace(loss, kind=BCE)])))
    diagnosis = patterns_of(windows)[-1]
    assert (diagnosis.pattern, diagnosis.constant) == (
        ("padding", 5.0) if divisor == "all" else ("fair", 1.0)
    )


def test_of_many_sizes_in_a_window_the_mean_is_wrong_whatever_the_mask_is() -> None:
    losses = [
        dataclasses.replace(
            term(n // 2, 1 / n / 3, "none", size=n, elements=n, element_weight=1 / n / 3), kind=BCE
        )
        for n in (101, 203, 305)
    ]
    losses[0].tokens = 60
    assert first(facts(record(losses))).pattern == "padding"


def test_losses_that_pull_both_ways_are_a_design_and_reported_as_such() -> None:
    real, fake = term(10, 0.1), term(10, -0.1)
    assert first(facts(record([real, fake])), []) == Diagnosis("by_design", OWN_LOSSES)


# ---------------------------------------------------------------------- a term that was not divided


def with_aux(
    coefficient: float | None,
    k: int = 4,
    divisor: int | None = None,
    scale: float | None = None,
    **changes: Any,
) -> StepFacts:
    """A right loss, and a further mean that every micro-batch adds undivided."""
    weight = 1 / (50 * (divisor or k))

    def aux() -> Term:
        aux_term = term(8, (coefficient or 1.0) / 8, undivided=True, coefficient=coefficient)
        return dataclasses.replace(aux_term, **({"kind": "MeanBackward0"} | changes))

    window = record([[term(50, weight), aux()] for _ in range(k)])
    return facts(window, declared_scale=scale)


def test_of_two_round_coefficients_the_usual_one_is_the_authors_if_he_divides_beside_it() -> None:
    """0.5 is hardly 2 / 4, and 0.4 no 1.6 / 4; but 0.1 may be 0.5 / 5."""
    for coefficient, k in ((0.5, 6), (0.5, 4), (0.01, 2), (0.4, 4), (0.7, 4)):
        assert diagnose(with_aux(coefficient, k), [])[1].pattern == "term_missing"
    for coefficient, k in ((0.1, 5), (0.02, 5), (0.05, 2), (0.01, 10), (0.2, 15)):
        assert diagnose(with_aux(coefficient, k), [])[1].pattern == "coefficient"
    main_in_constants = with_aux(0.5, 4)
    for each in main_in_constants.objectives[0].terms:
        each.loss_term.undivided = True
    assert diagnose(main_in_constants, [])[1].pattern == "coefficient"


@pytest.mark.parametrize(
    ("coefficient", "k"),
    [(0.01, 4), (0.03, 4), (0.10004, 4), (None, 4), (1.0, 4), (0.02, 6), (0.03, 2)],
)
def test_a_term_that_is_added_undivided_is_named(coefficient: float | None, k: int) -> None:
    main, further = diagnose(with_aux(coefficient, k), [])
    assert (main.pattern, further.pattern, further.ratio) == ("fair", "term_missing", k)


@pytest.mark.parametrize(
    ("coefficient", "k"),
    [(0.25, 4), (0.25, 3), (0.7, 10), (0.75, 4), (0.2, 5), (0.5, 2), (0.01, 5)],
)
def test_a_coefficient_that_may_hold_the_division_is_left_alone(coefficient: float, k: int) -> None:
    main, further = diagnose(with_aux(coefficient, k), [])
    one = coefficient * k == 1
    assert (main.pattern, further.pattern) == ("fair", "fair" if one else "coefficient")


@pytest.mark.parametrize(
    "changes", [{"undivided": False, "weight": 0.01 / 32}, {"reduction": "sum", "weight": 0.01}]
)
def test_a_further_term_that_is_divided_or_no_mean_is_left_alone(changes: dict[str, Any]) -> None:
    assert pattern_and_ratio(with_aux(0.01, **changes)) == ("fair", 1.0)


@pytest.mark.parametrize(
    "changes",
    [
        {"kind": "KlDivergence", "reduction": "sum", "undivided": False},  # by its rows
        # masked: three of eight elements count in a mean over all
        {"reduction": "none", "tokens": 3, "elements": 8, "element_weight": 0.01 / 8},
    ],
)
def test_a_further_term_that_weighs_its_coefficient_is_not_divided(changes: dict[str, Any]) -> None:
    assert diagnose(with_aux(0.01, **changes), [])[1].pattern == "term_missing"


@pytest.mark.parametrize(
    ("coefficient", "outer", "weight", "pattern"),
    [
        (0.04, 0.01, 0.04, "term_missing"),  # 4 experts
        (0.005, 0.01, 0.01, "term_missing"),  # half of each element, and their weighted mean
        (-0.05, 0.1, 0.05, "term_missing"),  # 0.1 * -0.5 of a divergence, though 0.05 is 0.2 / 4
        (0.05, 0.2, 0.05, "coefficient"),  # 0.2 * (loss / 4), by a multiplication
        (0.01, 0.0025, 0.01, "coefficient"),  # (0.01 / K) * 4 experts
        (0.0025, 0.01, 0.0025, "coefficient"),  # 0.01 * (loss * (1 / K))
    ],
)
def test_of_several_constants_in_front_of_a_further_term_the_outermost_is_its_weight(
    coefficient: float, outer: float, weight: float, pattern: str
) -> None:
    step = with_aux(coefficient, outer_coefficient=outer, weight=weight / 8)
    assert diagnose(step, [])[1].pattern == pattern


def distillation(
    number: int, hard: Sequence[float], *, soft: float = 4.0, outer: float = 2.0, divided: bool
) -> StepRecord:
    """A divergence times the square of a temperature, and cross entropies with these constants, on
    each of four micro-batches of 8 samples."""
    k, divisors = (4, [4.0]) if divided else (1, [])
    apart: dict[str, Any] = {
        "coefficient": soft,
        "outer_coefficient": outer,
        "divisors": [*divisors, 8.0],
    }
    divergence = term(8, soft / 8 / k, "sum", elements=80, element_weight=soft / 8 / k, **apart)
    divergence = dataclasses.replace(divergence, kind="KlDivergence", head=1)
    alike: dict[str, Any] = {"undivided": not divided, "divisors": divisors, "head": 2}
    losses = [term(8, c / 8 / k, coefficient=None if c == 1 else c, **alike) for c in hard]
    return record([[divergence, *losses]] * 4, number)


@pytest.mark.parametrize(
    ("hard", "more", "is_named"),
    [
        ((0.5,), {}, True),
        ((0.5, 0.5), {"soft": 40.0, "outer": 40.0}, True),  # the mean of two
        ((0.25,), {}, False),  # 1 / 4
        ((0.5,), {"outer": 4.0}, False),  # 16 / 4, and 2 / 4
    ],
)
def test_a_mean_that_nothing_divides_is_named_beside_a_loss_with_an_unknown_weight(
    hard: tuple[float, ...], more: dict[str, float], is_named: bool
) -> None:
    undivided, divided = (
        judged([facts(distillation(n, hard, divided=is_divided, **more)) for n in (1, 2, 3)])
        for is_divided in (False, True)
    )
    assert accused(divided).keys() <= {"reduction.balance_off"}
    named = [f for f in undivided.findings if f.rule == "reduction.missing_division"]
    how = (
        "is added undivided on each of the 4 micro-batches. Its weight is 4 times its coefficient."
    )
    assert [f.summary for f in named] == is_named * [f"The cross entropy {how}"]
    assert not is_named or accused(undivided).keys() == {"reduction.missing_division"}


def test_a_factor_of_1_over_k_divides_a_loss_whose_constant_is_k() -> None:
    """0.5 * (T = 4) ** 2 * loss * (1 / K), of K = 8; nor is 1 / 8 alone a division by 4."""
    loss = term(10, 1 / 10, coefficient=1.0, outer_coefficient=1 / 8)
    assert first(facts(record([loss] * 8))).pattern == "coefficient"
    assert first(facts(record([loss] * 4))).pattern == "missing"
    alone = term(10, 1 / 10, coefficient=1.0)
    assert first(facts(record([alone] * 8))).pattern == "missing"


def test_a_loss_of_unknown_weight_has_one_if_another_loss_is_divided_rightly() -> None:
    def summed(number: int, share: float, kind: str, **more: Any) -> StepFacts:
        """A sum over the batch, beside a cross entropy."""
        loss = dataclasses.replace(term(8, 2.0 / 4, "sum", coefficient=4.0, head=1), kind=kind)
        return facts(record([[loss, term(8, share / 8, head=2, **more)]] * 4, number))

    off = {"reduction.balance_off"}
    for share, kind, more, found in (
        (1 / 4, "SumBackward0", {}, set()),
        (0.7 / 4, "SumBackward0", {"coefficient": 0.7}, set()),
        (0.7 / 4, "SumBackward0", {}, off),
        (1 / 4, "NllLossBackward0", {}, off),  # whose unit is known
    ):
        steps = [summed(n, share, kind, **more) for n in (1, 2, 3)]
        assert accused(judged(steps)).keys() == found


def test_a_mean_of_one_micro_batch_needs_no_division() -> None:
    loss = dataclasses.replace(term(8, 2.0, "sum", coefficient=4.0), kind="SumBackward0")
    steps = [
        facts(record([[loss, term(8, 1 / 8, undivided=True, head=2)]], number))
        for number in (1, 2, 3)
    ]
    assert accused(judged(steps)) == {}


def test_a_division_by_k_may_cancel_a_constant_of_the_formula() -> None:
    """0.01 * (4 experts) * loss / (K = 4) weighs as 0.01 * loss does."""
    undivided: dict[str, Any] = {"undivided": False, "weight": 0.01 / 8}
    for experts, pattern in ((4, "coefficient"), (8, "term_missing")):
        step = with_aux(0.01 * experts, outer_coefficient=0.01, **undivided)
        assert diagnose(step, [])[1].pattern == pattern
    of_k = with_aux(0.01, **undivided, elements=4, reduction="none", element_weight=0.01 / 4)
    assert diagnose(of_k, [])[1].pattern == "coefficient"


def test_where_k_is_the_declared_scale_no_further_term_is_divided() -> None:
    assert [d.pattern for d in diagnose(with_aux(0.01, divisor=1, scale=4.0), [])] == [
        "fair",
        "coefficient",
    ]


def test_a_further_sum_of_k_tokens_may_be_divided_by_either() -> None:
    step = with_aux(0.01, undivided=False, reduction="sum", tokens=4, weight=0.01 / 4)
    assert diagnose(step, [])[1].pattern == "coefficient"


@pytest.mark.parametrize(("rows", "pattern"), [(6, "coefficient"), (3, "term_missing")])
def test_a_further_mean_of_sums_of_k_may_be_divided_by_k(rows: int, pattern: str) -> None:
    """A divergence over 4 or 8 latent dimensions, in 4 micro-batches."""
    mean: dict[str, Any] = {
        "reduction": "none",
        "tokens": 24,
        "elements": rows,
        "weight": 0.01 / 24,
    }
    assert diagnose(with_aux(0.01, undivided=False, **mean), [])[1].pattern == pattern


@pytest.mark.parametrize(("columns", "pattern"), [(4, "coefficient"), (3, "term_missing")])
def test_a_further_sum_over_rows_of_k_may_be_divided_by_k(columns: int, pattern: str) -> None:
    """A divergence over 4 or 3 latent dimensions, a sum that rows and K, or elements divide."""
    size = 6 * columns
    divergence: dict[str, Any] = {
        **{"kind": "SumBackward0", "reduction": "sum", "undivided": False},
        **{"tokens": size, "size": size, "rows": 6, "positions": 6},
        **{"weight": 0.15 / size, "outer_coefficient": 0.3},
    }
    further = diagnose(with_aux(-0.15, **divergence), [])[1]
    assert further.pattern == pattern


@pytest.mark.parametrize(
    ("k", "weight", "earlier", "pattern"),
    [
        (2, 0.2, (3, 0.2), "term_missing"),
        (2, 0.05, (3, 0.1 / 3), "coefficient"),  # divided by K
        (2, 0.05, (2, 0.05), "coefficient"),  # of one K, 0.05 may be 0.1 / K
        (3, 0.0025, (4, 0.0025), "coefficient"),  # may be 0.01 / 4 in a shorter window
    ],
)
def test_a_further_term_of_one_weight_in_windows_of_two_sizes_is_not_divided(
    k: int, weight: float, earlier: tuple[int, float], pattern: str
) -> None:
    size, before = earlier
    past = Closed.of(step := with_aux(before, size), first(step))
    assert dict(past.further) == {"MeanBackward0#0": pytest.approx(before)}
    assert diagnose(with_aux(weight, k), [past])[1].pattern == pattern


def test_of_a_loss_that_something_divides_windows_of_two_sizes_show_nothing() -> None:
    """By 4 in all windows, as a constant."""
    before, now = (with_aux(0.1, k, undivided=False, weight=0.1 / 32) for k in (4, 3))
    past = Closed.of(before, first(before))
    assert diagnose(now, [past])[1].pattern == "coefficient"


def test_a_further_term_that_is_added_once_in_a_window_weighs_the_same_in_all() -> None:
    penalty = term(8, 0.1 / 8, undivided=True, coefficient=0.1)

    def window(k: int) -> StepFacts:
        last = [term(50, 1 / (50 * k)), dataclasses.replace(penalty, kind="MeanBackward0")]
        return facts(record([*[[term(50, 1 / (50 * k))] for _ in range(k - 1)], last]))

    past = Closed.of(before := window(4), first(before))
    assert past.further == ()
    assert diagnose(window(3), [past])[1].pattern == "coefficient"


def test_windows_in_which_the_main_loss_weighs_differently_show_nothing_of_a_further_one() -> None:
    """A first window of one micro-batch, in which both losses weigh a quarter as in later ones."""
    penalty = dataclasses.replace(
        term(8, 0.025 / 8, undivided=True, coefficient=0.025), kind="MeanBackward0"
    )
    loss = term(50, 1 / 200, undivided=True, coefficient=0.25)
    short, full = facts(record([[loss, penalty]])), facts(record([[loss, penalty]] * 4))
    past = Closed.of(short, first(short))
    assert (past.pattern, len(past.further)) == ("coefficient", 1)
    assert diagnose(full, [past])[1].pattern == "coefficient"


def test_a_main_loss_with_a_weight_of_its_own_shows_a_further_one_that_is_not_divided() -> None:
    """A gradient penalty of weight 10 is the heaviest, and right; the critic's mean is not."""
    heavy = dataclasses.replace(term(8, 10 / 32, coefficient=10.0), kind="MeanBackward0")
    window = [[heavy, term(50, 1 / 50, undivided=True)] for _ in range(4)]
    assert [d.pattern for d in diagnose(facts(record(window)), [])] == [
        "coefficient",
        "term_missing",
    ]


def router(weights: Sequence[float], coefficient: float | None = 0.08, **changes: Any) -> StepFacts:
    """A right loss, and a sum over experts of means over 10, 20, 30 and 40 tokens."""
    sizes = (10, 20, 30, 40)

    def aux(tokens: int, weight: float) -> Term:
        loss = term(tokens, weight, "none", undivided=True, coefficient=coefficient)
        return dataclasses.replace(loss, kind="SumBackward0", nonlinear=True, **changes)

    windows = zip(sizes, weights, strict=True)
    return facts(record([[term(50, 1 / 200), aux(n, weight)] for n, weight in windows]))


def test_a_router_loss_that_is_added_undivided_is_named() -> None:
    means = [0.16 / n for n in (10, 20, 30, 40)]
    main, further = diagnose(router(means), [])
    assert (main.pattern, further.pattern, further.ratio) == ("fair", "term_missing", 4)
    assert diagnose(router(means, coefficient=0.005), [])[1].pattern == "coefficient"
    share = router(means, coefficient=0.04, outer_coefficient=0.0025)  # (0.01 / K) * 16 experts
    assert diagnose(share, [])[1].pattern == "coefficient"
    assert diagnose(router([0.004] * 4), [])[1].pattern == "coefficient"


def test_a_single_micro_batch_leaves_no_term_undivided() -> None:
    assert pattern_and_ratio(with_aux(None, 1)) == ("fair", 1.0)


def test_beside_a_loss_that_is_not_divided_either_no_further_term_is_named() -> None:
    assert pattern_and_ratio(with_aux(0.01, divisor=1)) == ("missing", 4)


def test_a_further_term_of_some_micro_batches_is_left_alone() -> None:
    step = record([[term(50, 1 / 200)] for _ in range(4)])
    aux = term(8, 0.04 / 8, undivided=True, coefficient=0.01)
    step.micro_batches[0].terms.append(dataclasses.replace(aux, kind="MeanBackward0"))
    assert pattern_and_ratio(facts(step)) == ("fair", 1.0)


def test_a_main_loss_of_one_micro_batch_shows_nothing_of_the_others() -> None:
    """A detector has no class loss where a micro-batch has no object of that size."""
    alone = term(50, 1 / 50)
    undivided = dataclasses.replace(term(8, 1 / 8, undivided=True), kind="MeanBackward0")
    window = [[alone, undivided], *[[undivided]] * 3]
    assert "term_missing" not in {d.pattern for d in diagnose(facts(record(window)), [])}
    halves = [[term(25, 1 / 50), undivided]] * 2
    normalised = diagnose(facts(record([*halves, [undivided], [undivided]])), [])
    assert [d.pattern for d in normalised] == ["fair", "term_missing"]


def test_a_mean_with_a_constant_behind_it_is_not_divided_whatever_the_constant_is() -> None:
    """The -0.5 in the divergence of a VAE; 0.05 in front of a mean may contain 1/K."""
    fields: dict[str, Any] = {"reduction": "none", "tokens": 24, "elements": 8}
    behind = with_aux(-0.05, 2, weight=0.05 / 8, element_weight=1 / 8, **fields)
    assert diagnose(behind, [])[1].pattern == "term_missing"
    in_front = with_aux(-0.05, 2, weight=0.05 / 8, element_weight=0.05 / 8, **fields)
    assert diagnose(in_front, [])[1].pattern == "coefficient"


def test_a_term_that_is_added_undivided_is_named_on_ranks_and_after_one_that_is_divided() -> None:
    """Kinds are looked at by name: the squares come after the absolutes."""
    right = dataclasses.replace(term(8, 0.01 / 32), kind="L1LossBackward0")
    wrong = term(8, 0.01 / 8, undivided=True, coefficient=0.01)
    wrong = dataclasses.replace(wrong, kind="MseLossBackward0")
    window = record([[term(50, 1 / 200), right, wrong] for _ in range(4)], sync="averaged")
    for ranks in (1, 2):
        diagnoses = diagnose(facts(*[window] * ranks), [])
        named = [d.objective.kind for d in diagnoses if d.pattern == "term_missing" and d.objective]
        assert named == ["MseLossBackward0"]


# ---------------------------------------------------------------------- what is remembered


def closed(sent: StepRecord) -> Closed:
    """A window as later ones see it."""
    step = facts(sent)
    return Closed.of(step, first(step, []))


def test_a_window_is_remembered_with_its_balance_only_where_that_was_known() -> None:
    right = [term(10, 1 / 40), term(30, 1 / 40)]
    fair = closed(record(right))
    assert fair._replace(balance=None) == Closed(
        2,
        None,
        40.0,
        "fair",
        lr=0.1,
        step=1,
        loss=2.0,
        number=2,
        unit="tokens",
        losses=("NllLossBackward0 mean ",),
        first=1,
        batch_tokens=40,
    )
    assert fair.balance == pytest.approx(1.0)
    assert closed(record(right, post_factor=None))[:4] == (2, None, 40.0, "unmeasured")
    assert closed(record(right, skipped=True))[:4] == (2, None, None, "unmeasured")


# ---------------------------------------------------------------------- changed after backward


def clipped(coefficient: float, norm: float = 0.3, **fields: Any) -> StepFacts:
    """A fair window whose gradients the loop itself multiplied by this number."""
    terms = [term(n, 1 / 200, "mean") for n in EVEN]
    return facts(record(terms, post_factor=coefficient, norm=norm, **fields))


def diagnoses_of(*windows: StepFacts) -> list[Diagnosis]:
    """The first diagnosis of each window, with those before it as its past."""
    past: list[Closed] = []
    found = []
    for window in windows:
        found.append(first(window, past))
        past.append(Closed.of(window, found[-1]))
    return found


def test_a_loop_that_scales_its_gradients_to_one_norm_clips() -> None:
    course = [clipped(0.371), clipped(0.842), clipped(1.0, norm=0.2), clipped(0.513)]
    patterns = [diagnosis.pattern for diagnosis in diagnoses_of(*course)]
    assert patterns == ["pending", "clipped", "fair", "clipped"]


def test_another_factor_after_backward_is_a_mistake_only_if_it_is_a_count() -> None:
    unknown = diagnoses_of(clipped(0.371, norm=0.3), clipped(0.842, norm=0.5))[1]
    assert not_measured(unknown) == SCALED_BY_LOOP
    count = diagnoses_of(clipped(1 / 187, norm=0.3), clipped(1 / 211, norm=0.5))[1]
    assert count.pattern == "wandering"


def test_clipping_by_hand_under_a_scaler_may_come_before_unscaling() -> None:
    terms = [[term(n, 8 / 200, "mean")] for n in EVEN]
    scaled = [records.MicroBatch(number=i, terms=t, scale=8.0) for i, t in enumerate(terms, 1)]
    course = [
        facts(StepRecord(0, i, 0.0, scaled, norm=0.3, post_factor=factor / 8))
        for i, factor in enumerate((0.371, 0.842), 1)
    ]
    assert not_measured(diagnoses_of(*course)[1]) == CLIPPED_SCALED


def test_gradients_that_were_changed_by_element_had_fair_weights_before() -> None:
    def changed(balance: float) -> StepFacts:
        terms = [term(n, balance / 200, "mean") for n in EVEN]
        reason = "the gradients were changed after backward"
        step = record(terms, post_factor=None, changed=True, missing={"post_factor": reason})
        return facts(step)

    assert first(changed(1.0)).pattern == "fair"
    assert first(changed(4.0)).pattern == "unmeasured"
    assert first(changed(0.0)).pattern == "unmeasured"  # no element has a weight


# ---------------------------------------------------------------------- one backward for each task


def of_tasks(*weights: float) -> StepFacts:
    """K = 2 micro-batches of each of two tasks, which have 12 and 4 samples."""
    counts, heads = (12, 4, 12, 4), (1, 2, 1, 2)
    terms = [
        term(n, weight / n, undivided=False, head=head)
        for n, weight, head in zip(counts, weights, heads, strict=True)
    ]
    return facts(record(terms))


def test_backwards_of_tasks_with_their_own_heads_are_objectives_of_their_own() -> None:
    patterns = [d.pattern for d in diagnose(of_tasks(0.5, 0.5, 0.5, 0.5), [])]
    assert patterns == ["fair", "fair"]
    missing = diagnose(of_tasks(1.0, 1.0, 1.0, 1.0), [])[0]
    assert (missing.pattern, missing.ratio) == ("missing", 2)


def test_micro_batches_of_which_one_shows_no_head_are_one_objective() -> None:
    terms = [term(n, 1 / n, head=head) for n, head in ((12, 1), (4, None))]
    assert len(facts(record(terms)).objectives) == 1


@pytest.mark.parametrize(
    ("k", "coefficient", "factor", "named"),
    [
        (4, 1 / 4, 1 / 4, True),
        (3, 1 / 3, 1 / 3, True),
        (2, 1 / 2, 1 / 2, False),  # half of a loss may be meant
        (4, 1 / 8, 1 / 4, False),
        (4, 1 / 4, 1.0, False),
    ],
)
def test_a_coefficient_of_1_over_k_is_a_second_division_if_gradients_were_divided_too(
    k: int, coefficient: float, factor: float, named: bool
) -> None:
    """As by a pipeline's schedule, which divides the gradients by K."""
    terms = [term(6, coefficient / 6, coefficient=coefficient, undivided=True)] * k
    steps = [facts(record(terms, number, post_factor=factor)) for number in (1, 2)]
    assert ("reduction.double_division" in accused(judged(steps))) is named


@pytest.mark.parametrize(
    ("kind", "reduction", "divisors", "named"),
    [
        ("MseLossBackward0", "mean", [4.0, 4.0], True),  # whose mean divides by its rows itself
        ("MseLossBackward0", "mean", [4.0], False),
        ("MeanBackward0", "mean", [4.0, 4.0], False),  # one may be a count of what it reduces
        ("SumBackward0", "none", [4.0, 4.0], False),
    ],
)
def test_a_further_loss_of_k_rows_is_divided_by_k_twice(
    kind: str, reduction: str, divisors: list[float], named: bool
) -> None:
    main = term(6, 1 / 24, divisors=[4.0])
    weight = 0.1 / 4 / math.prod(divisors)
    further = dataclasses.replace(
        term(4, weight, reduction, divisors=divisors, coefficient=0.1), kind=kind
    )
    diagnoses = diagnose(facts(record([[main, further]] * 4)), [])
    assert ("term_double" in [d.pattern for d in diagnoses]) == named


@pytest.mark.parametrize(
    ("divisors", "rows", "named"),
    [
        ([96.0, 4.0], 24, True),
        ([96.0], 24, False),
        ([90.0, 4.0], 24, False),  # of another count
        ([96.0, 4.0], 4, False),  # 4 may be the batch size
    ],
)
def test_k_divides_a_further_sum_besides_the_count_of_the_window(
    divisors: list[float], rows: int, named: bool
) -> None:
    main = term(24, 1 / 96, "sum", divisors=[96.0])
    of_all = {"size": 24, "rows": rows, "positions": 24, "elements": 24}
    weight = 1 / math.prod(divisors)
    further = term(24, weight, "sum", divisors=divisors, element_weight=weight, **of_all)
    further = dataclasses.replace(further, kind="SumBackward0")
    evaluation = judged([facts(record([[main, further]] * 4, n)) for n in (1, 2)])
    rules = [f.rule for f in evaluation.findings]
    assert ("reduction.double_division" in rules) == named


@pytest.mark.parametrize("divisors", [[6.0], [4.0, 6.0]])
def test_k_is_missing_in_the_heaviest_loss_whose_constant_is_a_ramp(divisors: list[float]) -> None:
    """The divergence of a VAE over 4 latent numbers, times 0.1, 0.2 and so on."""

    def divergence(constant: float) -> records.Term:
        element = constant / math.prod(divisors)
        constants = {"coefficient": -constant / 2, "outer_coefficient": constant}
        known = {"rows": 6, "positions": 6, "elements": 6, "element_weight": element}
        return dataclasses.replace(
            term(24, -element / 2, "none", divisors=divisors, **constants, **known),
            kind="SumBackward0",
        )

    main = dataclasses.replace(term(6, 1 / 24, divisors=[4.0]), kind="MseLossBackward0")
    steps = [facts(record([[main, divergence(n / 10)]] * 4, n)) for n in range(1, 7)]
    rules = [f.rule for f in judged(steps).findings]
    assert ("reduction.missing_division" in rules) == (divisors == [6.0])


@pytest.mark.parametrize(
    ("shape", "named"),
    [
        ({"elements": 12, "positions": 1, "averaged": 4}, True),  # one for each unit
        ({"elements": 4, "positions": 1, "averaged": 4}, False),  # may be one of each sample
        ({"elements": 12, "positions": 4, "averaged": 4}, False),  # may be 3 of each sample
        ({"elements": 12, "positions": 1, "averaged": 7}, False),  # of other rows
        ({"elements": 12, "positions": 1}, False),
    ],
)
def test_k_is_missing_in_a_sum_of_statistics(shape: dict[str, Any], named: bool) -> None:
    main = term(24, 1 / 96, samples=4, divisors=[4.0])
    known = {
        "undivided": True,
        "coefficient": 0.1,
        "element_weight": 0.1,
        "size": shape["elements"],
    }
    statistic = term(shape["elements"], 0.1, "sum", **(known | shape))
    statistic = dataclasses.replace(statistic, kind="SumBackward0")
    step = facts(record([[main, statistic]] * 4))
    assert (diagnose(step, [])[1].pattern == "term_missing") == named
    assert {finding.severity for finding in judged([step]).findings} == (
        {"info"} if named else set()
    )


# ---------------------------------------------------------------------- constants, and K


def times(constant: float, divisor: float, k: int, **more: Any) -> StepFacts:
    """K equal means, each multiplied by a constant and divided by a number."""
    loss = term(50, constant / divisor / 50, coefficient=constant, **more)
    return facts(record([loss] * k))


def windows(*steps: StepFacts) -> list[Diagnosis]:
    """The diagnosis of each window after those before it."""
    past: list[Closed] = []
    diagnoses = []
    for step in steps:
        diagnoses.append(first(step, past))
        past.append(Closed.of(step, diagnoses[-1]))
    return diagnoses


def test_a_constant_is_taken_out_of_a_balance_before_it_is_compared_with_k() -> None:
    double = first(times(16.0, 16.0, 4))
    assert (double.pattern, double.ratio, double.constant) == ("double", 1 / 4, 16.0)
    by_two = first(times(0.5, 1.0, 8, undivided=True))
    assert by_two.evidence.endswith("is one by 2, and the gradient is 4 times too large")
    assert "division" not in first(times(0.01, 1.0, 4, undivided=True)).evidence
    missing = first(times(0.3, 1.0, 4, undivided=True))
    assert (missing.pattern, missing.ratio, missing.constant) == ("missing", 4, 0.3)
    assert first(times(0.3, 4.0, 4)).pattern == "coefficient"


@pytest.mark.parametrize("constant", [0.5, 0.25, 2.0, 16.0])
def test_a_constant_that_may_contain_the_division_accuses_nobody(constant: float) -> None:
    """0.5 with K = 4 may be 2 / 4; 16 may be the size of the batch."""
    assert first(times(constant, 1.0, 4, undivided=True)).pattern in ("pending", "fair")


def test_windows_of_different_k_show_a_division_whatever_the_constant_is() -> None:
    lengths = (4, 2, 3, 4)
    right = windows(*(times(0.7, k, k) for k in lengths))
    assert {d.pattern for d in right} == {"coefficient"}
    missing = windows(*(times(0.7, 1.0, k, undivided=True) for k in lengths))
    assert [d.pattern for d in missing] == ["pending", "pending", "missing", "missing"]
    assert missing[-1].constant == pytest.approx(0.7)
    double = windows(*(times(0.7, k * k, k) for k in lengths))
    assert {d.pattern for d in double} == {"double"}


def test_a_loss_scale_that_is_still_in_the_gradients_hides_what_divides_windows_that_grow() -> None:
    """The windows are divided by the first K, 3; without the scale, the first one would be fair."""
    growing = [record([term(50, 1024 / 150)] * k) for k in (3, 3, 4, 4, 5, 5)]
    assert "missing" in {d.pattern for d in windows(*map(facts, growing))}
    for micro_batch in (each for step in growing for each in step.micro_batches):
        micro_batch.scale = 1024.0
    assert "missing" not in {d.pattern for d in windows(*map(facts, growing))}


def test_windows_that_grow_may_all_be_divided_by_the_last_k() -> None:
    growing = windows(*(times(1 / 6, 1.0, k) for k in (2, 2, 4, 4, 5, 5)))
    assert "missing" not in {d.pattern for d in growing}


@pytest.mark.parametrize("constant", [0.7, 2.0, 11.2])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_a_short_window_among_equal_ones_is_divided_by_their_k(
    constant: float, reduction: str
) -> None:
    """``sum``: of a divergence, which the number of rows divides in the script."""
    steps = windows(*(times(constant, 4.0, k, reduction=reduction) for k in (4, 4, 4, 2)))
    assert [d.pattern for d in steps[:3]] == ["coefficient"] * 3
    assert (steps[3].pattern, steps[3].ratio) == ("partial", 0.5)
    again = windows(*(times(constant, 4.0, k, reduction=reduction) for k in (4, 4, 4, 2) * 2))
    assert [d.pattern for d in again[4:]] == ["coefficient"] * 3 + ["partial"]


def test_a_constant_that_equals_the_number_of_tokens_does_not_make_a_mean_a_sum() -> None:
    """Distillation: T**2 = 16 in front of the mean over 16 rows."""
    divergence = term(16, 1.0, "sum", coefficient=16.0, divisors=[16.0], undivided=False)
    step = facts(record([dataclasses.replace(divergence, kind="KlDivBackward0")]))
    assert [d.pattern for d in windows(step, step)] == ["coefficient"] * 2
    undivided = dataclasses.replace(divergence, coefficient=None, divisors=[], undivided=True)
    assert first(facts(record([undivided]))).pattern == "sum"


def test_a_loss_times_its_batch_size_is_a_sum_whose_window_grows_in_a_warm_up() -> None:
    steps = windows(*(times(8.0, 1.0, k, undivided=True) for k in (2, 3, 4, 4)))
    assert {d.pattern for d in steps} <= {"pending", "coefficient"}


def test_a_mean_of_sums_over_pixels_is_not_divided_by_k() -> None:
    """Six rows of 64 pixels: each row weighs 1/6, and four micro-batches are added."""
    loss = term(384, 1 / 6, "sum", kind="MseLossBackward0", rows=6, positions=48)
    assert [d.pattern for d in windows(*[facts(record([loss] * 4))] * 2)] == ["pending", "missing"]
    half = dataclasses.replace(loss, weight=1 / 12, coefficient=0.5)
    patterns = [d.pattern for d in windows(*[facts(record([half] * 4))] * 3)]
    assert patterns == ["pending", "pending", "constant"]


def test_random_shares_of_two_labels_on_one_head_are_one_loss() -> None:
    """Mixup: the shares differ between micro-batches, and their sums are equal."""
    pairs = [
        [term(50, share / 50, head=1), term(50, (1 - share) / 50, head=1, coefficient=0.5)]
        for share in (0.2, 0.7, 0.6, 0.9)
    ]
    step = facts(record(pairs))
    diagnosis = first(step)
    assert (diagnosis.pattern, diagnosis.ratio) == ("missing", 4)
    assert "reduction.token_weights_unequal" not in accused(judged([step]))


def test_two_backwards_of_each_batch_are_not_evidence_of_a_missing_division() -> None:
    """As of adversarial training. Labels that are equal by chance are in no such order."""
    step = record([term(n, 2 / 200) for n in EVEN])
    for prints, pattern in (((1.0, 1.0, 2.0, 2.0), CHANGED), ((1.0, 2.0, 2.0, 1.0), "")):
        for batch, print_ in zip(step.micro_batches, prints, strict=True):
            batch.fingerprint = print_
        assert first(facts(step), before(2.0, 2.0)).reason == pattern


def test_a_window_of_two_backwards_of_one_batch_is_no_evidence_of_a_missing_division() -> None:
    """As of adversarial training with one batch for each step."""
    step = record([term(24, 1 / 24)] * 2)
    for prints, pattern in (((1.0, 1.0), CHANGED), ((1.0, 2.0), "")):
        for batch, print_ in zip(step.micro_batches, prints, strict=True):
            batch.fingerprint = print_
        assert first(facts(step), before(2.0, 2.0)).reason == pattern


def test_gradients_that_the_loop_adds_up_are_not_averaged_over_the_ranks() -> None:
    """A weight of 1/4 with two micro-batches on two ranks: a sum over both would be 1/2."""

    def pattern(weight: float, factor: float) -> str:
        left = [[1.0, -2.0, 0.5], [3.0, 1.0, -0.25]]
        at_step = [factor * sum(column) for column in zip(*left, strict=True)]
        fields: dict[str, Any] = {"post_factor": None, "sync": "unknown", "collectives_after": 3}
        terms = [term(10, weight, "sum")] * 2
        step = facts(*(record(terms, samples=Samples(x, at_step), **fields) for x in left))
        return windows(step, step)[-1].pattern

    assert pattern(1 / 4, factor=1.0) != "sum"
    assert pattern(1 / 2, factor=1.0) == "sum"
    assert pattern(1.0, factor=1 / 2) == "sum"
    assert pattern(1 / 2, factor=1 / 2) == "sum"


def test_a_sum_whose_divisor_is_k_times_too_small_in_two_windows_may_count_samples() -> None:
    """Sentences of 4 tokens on average: 6 of them divide 24 tokens, and 4 divide 16."""

    def patterns(*counts: tuple[list[int], int]) -> list[str]:
        steps = [
            facts(record([term(n, 1 / divisor, "sum") for n in sizes])) for sizes, divisor in counts
        ]
        return [diagnosis.pattern for diagnosis in windows(*steps)]

    two = ([9, 5, 4, 6], 6), ([4, 2, 3, 7], 4)
    assert patterns(*two, ([11, 5, 4, 6], 6)) == ["pending", "pending", "wandering"]
    assert patterns(*two, ([8, 5, 2, 5], 5)) == ["pending", "pending", "missing"]
    assert patterns(*[([9, 5, 4, 6], 6)] * 6) == ["pending"] * 5 + ["missing"]
    assert patterns(*[([6] * 4, 6)] * 2) == ["pending", "missing"]


def test_a_loss_of_each_sample_shows_that_a_further_one_is_not_divided() -> None:
    """The sum over the letters of 8 utterances in each micro-batch, times 0.7; K = 4."""

    def step(number: int, *letters: int, divided: bool) -> StepFacts:
        of_letters = {"rows": 8, "size": 80, "coefficient": 0.7}
        weight, shape = 0.3 / 8 / (4 if divided else 1), {"elements": 8, "undivided": not divided}
        aux = term(8, weight, "none", coefficient=0.3, element_weight=weight, **shape)
        aux = dataclasses.replace(aux, kind="CtcLossBackward0", rows=None, size=None)
        micro_batches = [[term(n, 0.7 / 32, "sum", **of_letters), aux] for n in letters]
        return facts(record(micro_batches, number))

    for divided, pattern in ((True, "coefficient"), (False, "term_missing")):
        first_step = step(1, 30, 41, 52, 23, divided=divided)
        past = [Closed.of(first_step, first(first_step))]
        main, further = diagnose(step(2, 21, 44, 50, 22, divided=divided), past)
        assert (main.pattern, further.pattern) == ("wandering", pattern)
    (finding,) = (
        f
        for f in judged([first_step, step(2, 21, 44, 50, 22, divided=False)]).findings
        if f.rule == "reduction.wrong_denominator"
    )
    assert "the divisor is 32 besides the constant 0.7, but 137 elements count" in finding.summary
    assert "number of samples" in finding.summary


@pytest.mark.parametrize(
    ("kind", "weight", "rule", "severity"),
    [
        ("mean of sums", 1 / 32, "wrong_denominator", "info"),
        ("a sum over 8", 1 / 32, "wrong_denominator", "warning"),
        ("divided by 1", 1 / 8, "missing_division", "warning"),
    ],
)
def test_a_mean_of_sums_over_samples_is_information(
    kind: str, weight: float, rule: str, severity: str
) -> None:
    """As the log-likelihood of 8 sequences in each of 4 micro-batches."""
    shape: dict[str, Any] = {"rows": 8, "size": 80}
    shape |= {} if kind == "a sum over 8" else {"elements": 8, "element_weight": weight}
    shape |= {"undivided": False} if kind == "divided by 1" else {"divisors": [4.0]}
    reduction = "sum" if kind == "a sum over 8" else "none"
    steps = [
        facts(record([[term(n, weight, reduction, **shape)] for n in letters], number))
        for number, letters in enumerate([(30, 41, 52, 23), (21, 44, 50, 22), (25, 31, 60, 9)], 1)
    ]
    (finding,) = judged(steps).findings
    assert (finding.rule, finding.severity) == (f"reduction.{rule}", severity)
    if kind == "mean of sums":
        assert finding.evidence["samples"] == 32
        assert "3.906 elements on average" in finding.summary
    elif kind == "divided by 1":
        assert "mean of sums, and nothing divides by K" in finding.summary


@pytest.mark.parametrize(("elements", "head"), [(4, None), (4, 1), (24, 1)])
def test_what_divides_a_sum_of_k_rows_may_be_k(elements: int, head: int | None) -> None:
    """As the diagonal of a correlation of 4 features, or the squares of an output of 4 rows."""
    shape: dict[str, Any] = {"elements": elements, "size": elements, "rows": 4, "head": head}
    loss = term(elements, 1 / 4, "sum", divisors=[4.0], element_weight=1 / 4, **shape)
    loss = dataclasses.replace(loss, kind="SumBackward0")
    steps = [facts(record([loss] * k, number)) for number, k in enumerate((4, 4, 3), 1)]
    patterns = patterns_of(steps)
    assert {each.pattern for each in patterns} == {"unmeasured"}
    assert "4 alone divides each micro-batch" in patterns[0].reason
    # another count, which divides, is not K
    shape |= {"elements": elements + 1, "size": elements + 1, "rows": 5}
    other = term(elements + 1, 1 / 5, "sum", divisors=[5.0], element_weight=1 / 5, **shape)
    other = dataclasses.replace(other, kind="SumBackward0")
    shown = patterns_of([facts(record([other, *[loss] * 3], number)) for number in (1, 2, 3)])
    assert shown[-1].pattern == "missing"


def test_a_weight_of_one_half_is_no_division_of_two_micro_batches_that_k_divides_besides() -> None:
    """Half of a divergence times the square of the temperature 4."""
    divergence = term(8, 8 / 16, "sum", divisors=[2.0, 8.0], coefficient=8.0, outer_coefficient=0.5)
    divergence = dataclasses.replace(divergence, kind="KlDivergence")
    patterns = patterns_of([facts(record([divergence] * 2, number)) for number in (1, 2, 3)])
    assert {each.pattern for each in patterns} == {"coefficient"}


def test_a_loss_that_k_divides_lacks_no_division_though_its_weight_is_its_constant() -> None:
    """Half of the squares of 8 numbers in each row, over K = 4: 1, times the constant 0.01."""
    main = term(16, 1 / 64, divisors=[4.0])
    rows: dict[str, Any] = {"size": 128, "rows": 16, "positions": 16, "elements": 16}
    rows |= {"element_weight": 0.005 / 16 / 4, "coefficient": 0.005, "outer_coefficient": 0.01}
    half = term(128, 0.005 / 16 / 4, "none", divisors=[4.0], **rows)
    half = dataclasses.replace(half, kind="MeanBackward0")
    assert diagnose(facts(record([[main, half]] * 4)), [])[1].pattern == "coefficient"


def test_a_mean_of_all_its_elements_divides_by_the_batch_itself() -> None:
    main = term(6, 1 / 24, divisors=[4.0])
    of_all: dict[str, Any] = {"size": 12, "rows": 4, "elements": 12}
    mean = term(12, 0.1 / 12 / 16, divisors=[4.0, 4.0], coefficient=0.1, **of_all)
    mean = dataclasses.replace(mean, kind="MeanBackward0")
    assert diagnose(facts(record([[main, mean]] * 4)), [])[1].pattern == "term_double"
    # one for each of 4 samples, or layers
    several = diagnose(facts(record([[main, *[mean] * 4]] * 4)), [])
    assert "term_double" not in [d.pattern for d in several]


def test_a_mean_over_samples_of_the_means_of_each_is_not_called_one_of_sums() -> None:
    """As of diffusion models, whose samples have a weight each."""
    shape: dict[str, Any] = {"elements": 8, "element_weight": 1 / 8, "undivided": False}
    micro_batches = [[term(64, 1 / 64, "none", rows=8, size=64, **shape)] for _ in range(4)]
    (finding,) = judged([facts(record(micro_batches))]).findings
    assert finding.rule == "reduction.missing_division"
    assert "mean of means, and nothing divides by K" in finding.summary


def divided_by(
    main: Sequence[float], aux: Sequence[float], k: int = 4, **changes: Any
) -> Diagnosis:
    """The diagnosis of a penalty on activations, beside a right loss."""
    step = with_aux(
        0.1, k, undivided=not aux, weight=0.1 / 8 / math.prod(d or 1 for d in aux), **changes
    )
    for objective, divisors in zip(step.objectives, (main, aux), strict=True):
        for each in objective.terms:
            each.loss_term.divisors = list(divisors)
    return diagnose(step, [])[1]


@pytest.mark.parametrize(
    ("main", "aux", "pattern"),
    [
        ([4.0], [4.0, 4.0], "term_double"),
        ([4.0], [4.0], "coefficient"),
        ([200.0], [4.0, 4.0], "term_double"),  # the tokens of the window divide the main one
        ([200.0], [4.0], "coefficient"),
        ([4.0, 4.0], [4.0, 4.0], "coefficient"),  # a number that both have, such as of ranks
        ([0.0], [0.0, 4.0], "coefficient"),  # a sum over its tokens: 4 may be K, once
        ([4.0], [7.0], "term_missing"),
        ([4.0], [2.0, 5.0], "term_missing"),
        ([4.0], [8.0], "coefficient"),  # it may be 4 times 2
        ([4.0], [7.0, 0.0], "coefficient"),
        ([0.0], [7.0], "coefficient"),
        ([4.0], [1.5], "coefficient"),  # a loss over its detached value
        ([4.0], [4.0, 1.5], "coefficient"),
    ],
)
def test_the_constants_that_divide_show_a_division_that_one_loss_alone_has_or_lacks(
    main: list[float], aux: list[float], pattern: str
) -> None:
    assert divided_by(main, aux).pattern == pattern


def test_what_divides_a_further_sum_may_be_the_count_of_the_window() -> None:
    assert divided_by([4.0], [33.0]).pattern == "term_missing"
    of_window: dict[str, Any] = {"kind": "MseLossBackward0", "reduction": "sum"}
    assert divided_by([4.0], [33.0], **of_window).pattern == "coefficient"


def test_a_loss_whose_own_count_is_k_is_not_divided_twice() -> None:
    assert divided_by([4.0], [4.0, 4.0], rows=4).pattern == "coefficient"
    assert divided_by([2.0], [2.0, 2.0], k=2).pattern == "coefficient"
    assert divided_by([3.0], [3.0, 3.0], k=3).pattern == "term_double"


@pytest.mark.parametrize(
    ("divisors", "pattern", "balance"),
    [
        ([64.0], "fair", 1.0),  # the rows of this rank: DDP averages
        ([128.0], "world", 0.5),  # the rows of all ranks, and averaged again
        ([2.0, 64.0], "coefficient", 0.5),  # half a squared error
        ([16.0, 8.0], "pending", 10.0),  # 20 numbers in each row; what 8 is, is not known
    ],
)
def test_a_count_of_all_ranks_that_divides_a_loss_shows_its_unit(
    divisors: list[float], pattern: str, balance: float
) -> None:
    """A squared error that is added up over 20 numbers, and divided by a number of samples."""
    shape: dict[str, Any] = {"size": 320, "rows": 16, "positions": 16, "divisors": divisors}
    loss = term(320, 1 / math.prod(divisors), "none")
    window = record(
        [dataclasses.replace(loss, kind="MseLossBackward0", **shape)] * 4, sync="averaged"
    )
    step = facts(window, window)
    past = [Closed.of(step, first(step))]
    assert step.objectives[0].ledger.balance == pytest.approx(balance)
    assert first(step, past).pattern == pattern


@pytest.mark.parametrize(("share", "pattern"), [(1.0, "coefficient"), (2.0, "pending")])
def test_a_task_that_some_micro_batches_have_alone_has_their_share_of_the_window(
    share: float, pattern: str
) -> None:
    """One task is drawn for each micro-batch, and K divides its mean."""

    def of(kind: str, weight: float, coefficient: float | None = None) -> Term:
        return dataclasses.replace(term(10, weight / 40, coefficient=coefficient), kind=kind)

    classes, values = of("NllLossBackward0", share), of("MseLossBackward0", 0.25, 0.25)
    drawn = facts(record([classes, values, classes, classes]))
    assert first(drawn).pattern == pattern
    both = facts(record([[classes, values], [classes, classes], [classes], [classes]]))
    assert first(both).pattern != "coefficient"


def weighted_means(sums: Sequence[float], counts: Sequence[int], balance: float) -> list[StepFacts]:
    """Three windows of losses that are divided by the sum of their own weights, by hand."""
    share = balance / len(sums)
    batches = []
    for whole, count in zip(sums, counts, strict=True):
        least, most = 0.2 * share / whole, 8 * share / whole
        own = {"element_weight": share / whole, "elements": count, "size": count, "rows": count}
        weights = {"weight_min": least, "weight_max": most}
        batches.append(term(count, share / count, "none", **own, **weights))
    return [facts(record(batches, number)) for number in (1, 2, 3)]


@pytest.mark.parametrize(
    ("counts", "balance", "expected"),
    [
        ((12, 12, 12, 12), 1.0, set()),
        ((12, 12, 12, 12), 4.0, {"reduction.missing_division"}),
        ((12, 12, 12, 12), 1 / 4, {"reduction.double_division"}),
        ((20, 4, 12, 8), 1.0, {"reduction.token_weights_unequal"}),
        ((20, 4, 12, 8), 4.0, {"reduction.missing_division", "reduction.token_weights_unequal"}),
        ((20, 4, 12, 8), 1 / 4, {"reduction.double_division", "reduction.token_weights_unequal"}),
    ],
)
def test_weighted_means_by_hand_are_those_of_class_weights(
    counts: Sequence[int], balance: float, expected: set[str]
) -> None:
    sums = (31.0, 9.5, 22.4, 17.0)
    by_hand = judged(weighted_means(sums, counts, balance))
    batches = [
        term(count, balance / 4 / count, class_weight=whole, rows=count)
        for whole, count in zip(sums, counts, strict=True)
    ]
    of_classes = judged([facts(record(batches, number)) for number in (1, 2, 3)])
    assert accused(by_hand).keys() == accused(of_classes).keys() == expected
    if not expected:
        note = "of micro-batches, each the mean by its own"
        for evaluation in (by_hand, of_classes):
            assert note in evaluation.coverage["reduction.token_weights_unequal"]


def test_sums_of_weights_are_called_so() -> None:
    evaluation = judged(weighted_means((31.0, 9.5, 22.4, 17.0), (20, 4, 12, 8), 1.0))
    (found,) = evaluation.findings
    assert "whose weights add up to 9.5 counts 3.3 times" in found.summary
    assert "by the sum of its weights in the whole window" in found.fix
    # a constant may be a weight: then nothing shows that the sums are what it is divided by
    others = judged(weighted_means((31.0, 9.5, 22.4, 17.0), (20, 4, 12, 8), 7.0))
    assert not any("weights add up" in finding.summary for finding in others.findings)


@pytest.mark.parametrize(
    ("labels", "named"),
    [
        ((6, 2, 4), "reduction.missing_division"),  # the mean divides by them
        (None, "reduction.unnormalised_sum"),
    ],
)
def test_of_one_utterance_in_each_micro_batch_the_mean_is_no_sum(
    labels: tuple[int, ...] | None, named: str
) -> None:
    losses = [
        term(1, 1 / count, "none", elements=1, element_weight=1.0, size=None, positions=count)
        for count in labels or (1, 1, 1)
    ]
    losses = [dataclasses.replace(loss, kind="CtcLossBackward0") for loss in losses]
    assert accused(judged([facts(record(losses, n)) for n in (1, 2, 3)])).keys() == {named}


@pytest.mark.parametrize(
    ("divisors", "named"),
    [([0.0], "reduction.missing_division"), ([4.0, 0.0], "reduction.unnormalised_sum")],
)
def test_a_mean_over_as_many_utterances_as_micro_batches_is_no_sum(
    divisors: list[float], named: str
) -> None:
    """A quarter of each loss, which its labels divide: by the number of utterances, or by K."""
    losses = [
        dataclasses.replace(
            term(4, 0.1, "none", elements=4, element_weight=0.25, size=None, positions=count),
            kind="CtcLossBackward0",
            weight_min=0.05,
            weight_max=0.15,
            divisors=divisors,
        )
        for count in (10, 12, 9, 11)
    ]
    assert accused(judged([facts(record(losses, n)) for n in (1, 2, 3)])).keys() == {named}


def boxes(counts: list[int], divisors: list[float], coefficient: float | None = 2.0) -> StepFacts:
    """A sum over the elements of 200 anchors, by ``divisors``; ``counts`` are of another loss."""
    weights = [(coefficient or 1.0) / d for d in divisors]
    focal = [
        records.Term(
            "BinaryCrossEntropyWithLogitsBackward0",
            "sum",
            200,
            size=200,
            rows=2,
            positions=40,
            weight=w,
            undivided=False,
            divisors=[d],
            coefficient=coefficient,
            elements=200,
            element_weight=w,
        )
        for d, w in zip(divisors, weights, strict=True)
    ]
    corners = [
        records.Term(
            "SmoothL1LossBackward0",
            "sum",
            4 * n,
            size=4 * n,
            rows=n,
            positions=n,
            weight=1 / d,
            undivided=False,
            divisors=[d],
        )
        for n, d in zip(counts, divisors, strict=True)
    ]
    return facts(record([list(pair) for pair in zip(focal, corners, strict=True)]))


def test_micro_batches_that_are_divided_by_different_numbers_lack_the_division_by_k() -> None:
    found = first(boxes([9, 12, 10, 7], [9, 12, 10, 7]))
    assert found.pattern == "missing" and found.ratio == 4
    assert "such as 9 and 12, and nothing divides by K" in found.evidence


@pytest.mark.parametrize(
    ("divisors", "coefficient"),
    [
        ([36, 48, 40, 28], 2.0),  # by K, too
        ([38, 38, 38, 38], 2.0),  # by the count of the window
        ([9, 12, 9, 12], 2.0),  # two numbers: of a stale count
        ([9.5, 12.25, 10, 7], 2.0),  # no counts
        ([201, 12, 10, 7], 2.0),  # 201 counts more than the micro-batch holds
        ([9, 12, 10, 7], 0.5),  # 2/K
    ],
)
def test_a_division_by_k_may_be_in_the_divisors_of_micro_batches(
    divisors: list[float], coefficient: float
) -> None:
    assert first(boxes([9, 12, 10, 7], divisors, coefficient)).pattern != "missing"


def test_a_loss_with_a_weight_is_divided_by_the_count_of_the_one_beside_it() -> None:
    counts = [[9, 12, 10, 7 + i % 5] for i in range(8)]
    found = windows(*[boxes(n, [float(sum(n))] * 4) for n in counts])
    assert found[-1].pattern == "coefficient"


@pytest.mark.parametrize(
    ("coefficient", "divisors", "kind", "pattern"),
    [
        (4.0, [4.0], "MseLossBackward0", "unmeasured"),
        (4.0, [4.0], "KlDivBackward0", "coefficient"),  # the square of a temperature
        (3.0, [4.0], "MseLossBackward0", "coefficient"),
        (5.0, [], "MseLossBackward0", "unmeasured"),  # 5, or 20 / 4
        (1.25, [], "MseLossBackward0", "constant"),  # 5 / 4
    ],
)
def test_a_constant_in_front_of_the_only_loss_may_undo_or_contain_the_division_by_k(
    coefficient: float, divisors: list[float], kind: str, pattern: Pattern
) -> None:
    weight = coefficient / (divisors or [1.0])[0] / 10
    form: dict[str, Any] = {
        "coefficient": coefficient,
        "undivided": not divisors,
        "divisors": divisors,
    }
    terms = [
        records.Term(kind, "mean", 10, size=10, rows=10, positions=10, weight=weight, **form)
        for _ in range(4)
    ]
    found = windows(*[facts(record(terms, i)) for i in (1, 2, 3)])
    assert found[-1].pattern == pattern


@pytest.mark.parametrize(
    ("kind", "divisors", "counted", "pattern"),
    [
        ("MeanBackward0", [], 30, "missing"),
        ("SumBackward0", [40.0], 30, "missing"),  # the number of all elements
        ("SumBackward0", [40.0], 10, "fair"),  # which the mask leaves in the window by chance
        ("SumBackward0", [39.0], 30, "pending"),
        ("MeanBackward0", [4.0], 30, "unmeasured"),
    ],
)
def test_a_masked_mean_over_all_elements_that_nothing_divides_lacks_the_division_by_k(
    kind: str, divisors: list[float], counted: int, pattern: Pattern
) -> None:
    each = 1 / (math.prod(divisors) * (1 if kind.startswith("Sum") else 40))
    masked = records.Term(
        kind,
        "none",
        counted,
        size=40,
        rows=4,
        positions=40,
        weight=each,
        weight_min=each,
        weight_max=each,
        undivided=not divisors,
        divisors=divisors,
        elements=40,
        element_weight=each,
    )
    found = first(facts(record([masked] * 4)))
    assert found.pattern == pattern
    if pattern == "missing":
        assert found.constant == pytest.approx(counted / 40)


def test_all_losses_that_are_not_divided_are_stated_to_be() -> None:
    pair = [term(10, 1 / 10, head=1, undivided=True), term(10, 1 / 20, head=2, coefficient=0.5)]
    window = Window(facts(record([pair] * 4)))
    assert [d.pattern for d in window.diagnoses] == ["missing", "term_missing"]
    fair = [term(10, 1 / 10, head=1, undivided=True), term(10, 1 / 80, head=2, coefficient=0.5)]
    assert [d.pattern for d in diagnose(facts(record([fair] * 4)), [])] == [
        "missing",
        "coefficient",
    ]


@pytest.mark.parametrize(
    ("divisors", "pattern"),
    [
        ([36.0, 48.0, 40.0, 28.0], "fair"),  # by K and the boxes, or by their coordinates
        ([9.0, 12.0, 10.0, 7.0], "missing"),
    ],
)
def test_as_many_coordinates_as_micro_batches_show_no_missing_division(
    divisors: list[float], pattern: Pattern
) -> None:
    corners = [
        records.Term(
            "SmoothL1LossBackward0",
            "sum",
            4 * n,
            size=4 * n,
            rows=n,
            positions=n,
            weight=1 / d,
            undivided=False,
            divisors=[d],
        )
        for n, d in zip((9, 12, 10, 7), divisors, strict=True)
    ]
    (found,) = windows(facts(record(corners)))
    assert found.pattern == pattern
    assert found.objective is not None and found.objective.reading.unit == "rows"


def test_two_means_with_half_the_weight_each_are_not_divided_by_four() -> None:
    """As the similarities of two views: 0.5 averages them, and is no 1/K."""
    shape: dict[str, Any] = {"rows": 4, "size": 128, "positions": 4, "elements": 4}
    shape |= {"weight_min": 1e-4, "weight_max": 0.043, "weight_size": 0.0192}

    def windows(divisor: float) -> list[StepFacts]:
        of_elements = {"element_weight": -0.125 / divisor, "coefficient": 0.5 / divisor}
        view = term(128, -1e-4 / divisor, "none", undivided=divisor == 1, **of_elements, **shape)
        view.kind = "MeanBackward0"
        return [facts(record([[view, view]] * 4, number)) for number in (1, 2)]

    (finding,) = judged(windows(1)).findings
    assert finding.rule == "reduction.missing_division"
    assert "0.5 is the constant that the loss is multiplied by" in finding.summary
    assert judged(windows(4)).findings == []


def test_the_last_window_of_an_epoch_does_not_speak_for_all_before_it() -> None:
    counts = (4, 4, 4, 2)
    steps = [facts(record([term(10, 1 / 10)] * k, n)) for n, k in enumerate(counts, 1)]
    (finding,) = judged(steps).findings
    assert (
        finding.title
        == "The loss is not divided by K = 2 (4 in most windows that lack the division)"
    )
    assert "balance of step 4 is 2 instead of 1" in finding.summary
    assert "2 times too large (4 times in most such windows)" in finding.summary
    assert "learning rate changes with the balance" in finding.summary
    (finding,) = judged(steps[:3]).findings
    assert finding.title == "The loss is not divided by K = 4"
    assert "in most windows" not in finding.summary
