"""Windows of every size: the mistake that was step_record is named, and no other.

The loops of tests/integration/hooks prove that real training gives these weights; here they are
written down directly, for thousands of token counts, micro-batches and ranks.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from gradledger.records import StepRecord, Term
from gradledger_monitor.model.step_facts import StepFacts
from helpers.examples import examples
from helpers.facts import accused, facts, judged, record, term

Window = list[int]  # tokens of each micro-batch

quick = settings(max_examples=examples(40), deadline=None)
counts = st.integers(1, 4000)


def several(windows: st.SearchStrategy[Window]) -> st.SearchStrategy[list[Window]]:
    """Three windows with the same number of micro-batches and different sums."""
    return st.tuples(windows, windows, windows).map(list).filter(_comparable)


def _comparable(windows: list[Window]) -> bool:
    return len({len(w) for w in windows}) == 1 and len({sum(w) for w in windows}) == 3


same_k = st.integers(2, 16).flatmap(
    lambda k: several(st.lists(counts, min_size=k, max_size=k).filter(lambda w: len(set(w)) > 1))
)


def steps(windows: list[Window], weigh: Callable[[Window], list[Term]]) -> list[StepFacts]:
    return [facts(record(weigh(w), number)) for number, w in enumerate(windows, 1)]


def summed(divisor: Callable[[Window], float]) -> Callable[[Window], list[Term]]:
    """Every token weighs one over the divisor."""
    return lambda window: [term(n, 1 / divisor(window), "sum") for n in window]


def averaged(divisor: Callable[[Window], float]) -> Callable[[Window], list[Term]]:
    """Each micro-batch's mean, over the divisor."""
    return lambda window: [term(n, 1 / (n * divisor(window))) for n in window]


def uneven(window: Window) -> float:
    """Misallocation of a mean of means."""
    k, n = len(window), sum(window)
    return sum(abs(m / n - 1 / k) for m in window) / 2


@quick
@given(same_k)
def test_a_sum_over_n_is_right(windows: list[Window]) -> None:
    evaluation = judged(steps(windows, summed(sum)))
    assert (accused(evaluation), evaluation.verdict) == ({}, "balanced")


@quick
@given(same_k)
def test_a_mean_of_means_is_named_at_once_whenever_it_is_off(windows: list[Window]) -> None:
    off = [number for number, window in enumerate(windows, 1) if uneven(window) > 2e-3]
    assume(all(uneven(window) > 2e-3 or uneven(window) < 5e-4 for window in windows))
    named = {"reduction.token_weights_unequal": off[0]} if off else {}
    assert accused(judged(steps(windows, averaged(len)))) == named


@quick
@given(same_k)
def test_a_missing_division_is_named_at_once(windows: list[Window]) -> None:
    evaluation = judged(steps(windows, averaged(lambda window: 1)))
    assert accused(evaluation)["reduction.missing_division"] == 1


@quick
@given(same_k)
def test_a_double_division_of_a_mean_is_named_at_once_and_of_a_sum_in_the_second_window(
    windows: list[Window],
) -> None:
    """A sum may be divided by a count that is K times too small by chance; a first window of two
    micro-batches may be the rest of one of four. The second window then shows the first, too."""
    of_means = steps(windows, averaged(lambda w: len(w) ** 2))
    at_once = "reduction.double_division" in accused(judged(of_means[:1]))
    assert at_once == (len(windows[0]) != 2)
    assert accused(judged(of_means))["reduction.double_division"] == 1
    of_sums = steps(windows, summed(lambda w: sum(w) * len(w)))
    assert not judged(of_sums[:1]).findings
    assert accused(judged(of_sums)) == {"reduction.double_division": 1}


@quick
@given(same_k)
def test_a_sum_that_is_never_divided_is_named_at_once_where_the_graph_shows_it(
    windows: list[Window],
) -> None:
    """Else, in the second window: the first may be divided by a count that is 1 by chance."""
    for undivided in (True, False):
        terms = [[term(n, 1.0, "sum", undivided=undivided) for n in window] for window in windows]
        numbered = [facts(record(each, number)) for number, each in enumerate(terms, 1)]
        assert bool(judged(numbered[:1]).findings) == undivided
        assert accused(judged(numbered)) == {"reduction.unnormalised_sum": 1}


@quick
@given(same_k)
def test_the_count_of_another_window_is_a_wrong_denominator(windows: list[Window]) -> None:
    """Each window is divided by the tokens of the first."""
    k = len(windows[0])
    balances = [sum(window) / sum(windows[0]) for window in windows]
    assume(all(abs(b - 1) > 0.02 for b in balances[1:]))
    assume(abs(balances[1] / balances[2] - 1) > 0.02)
    assume(all(abs(b / s - 1) > 0.01 for b in balances for s in (k, 1 / k)))
    evaluation = judged(steps(windows, summed(lambda window: sum(windows[0]))))
    assert set(accused(evaluation)) == {"reduction.wrong_denominator"}
    assert accused(evaluation)["reduction.wrong_denominator"] <= 3


@quick
@given(st.integers(2, 12), st.integers(1, 500), st.data())
def test_a_short_window_still_divided_by_k_is_named_where_it_is(
    k: int, tokens: int, data: st.DataObject
) -> None:
    short = data.draw(st.integers(1, k - 1))
    windows = [[tokens] * k, [tokens] * k, [tokens] * short]
    assert accused(judged(steps(windows, averaged(lambda window: k)))) == {
        "reduction.partial_window": 3
    }
    assert accused(judged(steps(windows, averaged(len)))) == {}


@pytest.mark.parametrize(
    ("full", "short", "left_out"),
    [(4, 4, 2), (4, 2, None), (4, 3, None), (4, None, None), (8, 4, None), (None, 4, None)],
)
def test_a_partial_window_whose_batches_had_no_backward_names_them(
    full: int | None, short: int | None, left_out: int | None
) -> None:
    # 3 are drawn by a loop that checks a budget before each batch, steps on the rest and ends;
    # with two batches each, a tail of 2 micro-batches draws 4 of them
    windows = [
        facts(record([term(8, 1 / 32)] * 4, 1, batches=full)),
        facts(record([term(8, 1 / 32)] * 2, 2, batches=short)),
    ]
    (finding,) = (f for f in judged(windows).findings if f.inhibited_by is None)
    assert finding.rule == "reduction.partial_window"
    assert finding.evidence.get("batches_left_out") == left_out
    cause = "no backward followed 2 of them: a guard against a loss that is not finite may skip it."
    assert (cause in finding.summary) == (left_out is not None)
    assert ("done += 1" in finding.fix) == (left_out is not None)
    # 0 of a window without any backward, whose gradients may be 0 in memory
    assert ("p.grad.div_(max(done, 1))" in finding.fix) == (left_out is not None)


@quick
@given(st.integers(2, 64), st.lists(counts, min_size=2, max_size=6))
def test_steps_on_single_micro_batches_that_are_divided_all_the_same(
    m: int, tokens: list[int]
) -> None:
    windows = [[n] for n in tokens]
    evaluation = judged(steps(windows, averaged(lambda window: m)))
    assert accused(evaluation) == {"loop.step_every_microbatch": 2}


def on_each(windows: list[Window], divisor: Callable[[Window], float] = sum) -> list[StepFacts]:
    """A step on each micro-batch, whose loss is divided for all of its window."""
    parts = [(n, divisor(window)) for window in windows for n in window]
    return [
        facts(record([term(n, 1 / count, "sum")], number))
        for number, (n, count) in enumerate(parts, 1)
    ]


def test_steps_that_are_divided_by_what_several_have_together_are_parts_of_a_window() -> None:
    evaluation = judged(on_each([[10, 17, 8, 13], [20, 5, 11, 30]]))
    assert set(accused(evaluation)) == {"loop.step_every_microbatch"}
    (finding,) = (f for f in evaluation.findings if f.inhibited_by is None)
    assert finding.title == "The optimizer steps after 1 micro-batch instead of 4"
    assert finding.summary == (
        "At each of the steps 5 to 8, the loss of 1 micro-batch was divided by 66 elements, which "
        "is what these 4 steps have together: it is divided for an accumulation over 4 "
        "micro-batches that does not take place. The balance of step 8 is 0.4545 instead of 1."
    )


@pytest.mark.parametrize(
    ("windows", "is_named"),
    [
        ([[10, 17, 8]], True),  # one window of three
        ([[10, 17]], False),  # two may add up by chance
        ([[10, 17], [8, 13]], True),
        ([[40, 41, 39, 42], [10, 17], [8, 13]], True),
    ],
)
def test_as_many_windows_are_needed_as_chance_does_not_explain(
    windows: list[Window], is_named: bool
) -> None:
    assert ("loop.step_every_microbatch" in accused(judged(on_each(windows)))) == is_named


def test_a_window_that_does_not_add_up_shows_that_the_divisor_is_something_else() -> None:
    def doubled(window: Window) -> float:
        return sum(window) * (2 if window == [9, 14] else 1)

    windows = [[10, 17, 8], [9, 14], [20, 5, 11]]
    for divisor, last in ((sum, 8), (doubled, 5)):
        findings = judged(on_each(windows, divisor)).findings
        (named,) = (f for f in findings if f.rule == "loop.step_every_microbatch")
        assert named.last_step == last


def over_ranks(
    windows: list[list[Window]], divisor: Callable[[Window, list[Window]], float]
) -> list[StepFacts]:
    """Steps of several ranks whose gradients are averaged."""

    def one(window: Window, ranks: list[Window], number: int) -> StepRecord:
        terms = [term(n, 1 / divisor(window, ranks), "sum") for n in window]
        step_record = record(terms, number, sync="averaged", wrapper="ddp")
        for micro_batch in step_record.micro_batches:
            micro_batch.wrapper, micro_batch.collectives = "no_sync", 0
        step_record.micro_batches[-1].wrapper, step_record.micro_batches[-1].collectives = "sync", 1
        return step_record

    return [
        facts(*(one(window, ranks, number) for window in ranks))
        for number, ranks in enumerate(windows, 1)
    ]


rank_windows = st.tuples(st.integers(2, 8), st.integers(1, 6)).flatmap(
    lambda shape: st.lists(
        st.lists(
            st.lists(counts, min_size=shape[1], max_size=shape[1]),
            min_size=shape[0],
            max_size=shape[0],
        ),
        min_size=2,
        max_size=3,
    )
)


def everyones(ranks: list[Window]) -> int:
    return sum(map(sum, ranks))


@quick
@given(rank_windows)
def test_a_global_sum_times_the_world_size_is_right(windows: list[list[Window]]) -> None:
    evaluation = judged(over_ranks(windows, lambda mine, all_: everyones(all_) / len(all_)))
    assert accused(evaluation) == {}


@quick
@given(rank_windows)
def test_a_global_sum_that_is_averaged_again_is_named_in_the_second_window(
    windows: list[list[Window]],
) -> None:
    assume(all(everyones(ranks) > len(ranks) for ranks in windows))
    evaluation = judged(over_ranks(windows, lambda mine, all_: everyones(all_)))
    assert accused(evaluation) == {"reduction.world_size": 2}


@quick
@given(rank_windows)
def test_each_rank_by_its_own_count_is_named_whenever_it_is_off(
    windows: list[list[Window]],
) -> None:
    off = [uneven([sum(window) for window in ranks]) for ranks in windows]
    assume(all(d > 2e-3 or d < 5e-4 for d in off))
    wrong = [number for number, d in enumerate(off, 1) if d > 2e-3]
    evaluation = judged(over_ranks(windows, lambda mine, all_: sum(mine)))
    assert accused(evaluation) == ({"reduction.token_weights_unequal": wrong[0]} if wrong else {})
    if wrong:
        (finding,) = evaluation.findings
        assert finding.evidence["differ"] == "between ranks"


@pytest.mark.parametrize("k", [2, 4, 8])
def test_padding_in_the_divisor_is_named_at_once(k: int) -> None:
    """Each micro-batch is divided by its padded size, and by K."""
    windows = [[(index * 7 + number * 3) % 50 + 5 for index in range(k)] for number in (1, 2, 3)]
    steps_of_padding = [
        facts(record([term(n, 1 / (64 * k), "sum", size=64) for n in window], number))
        for number, window in enumerate(windows, 1)
    ]
    assert accused(judged(steps_of_padding)) == {"reduction.wrong_denominator": 1}


def test_a_sum_beside_a_penalty_is_a_warning_and_beside_another_sum_information() -> None:
    """A bound on a likelihood, as of a VAE, is a sum of sums."""
    squares = [
        replace(term(n, 1.0, "sum", undivided=True), kind="MseLossBackward0") for n in (8, 16)
    ]
    sums = replace(term(8, 1.0, "sum", undivided=True), kind="SumBackward0")
    for further, severity in (
        (replace(sums, penalty=True, elements=8, element_weight=1.0), "warning"),
        (sums, "info"),
    ):
        windows = [facts(record([[loss, further]], n)) for n, loss in enumerate(squares, 1)]
        found = {f.rule: f.severity for f in judged(windows).findings}
        assert found["reduction.unnormalised_sum"] == severity


@pytest.mark.parametrize(
    ("weight", "severity"),
    [(1e-3, "info"), (2e-3, "info"), (3e-3, "warning"), (0.1, "warning")],
)
def test_a_mistake_in_a_loss_with_little_of_the_gradient_is_information(
    weight: float, severity: str
) -> None:
    """Nothing divides it, so that it has 4 * weight beside the 1 of the main loss."""
    further = term(24, weight / 24, undivided=True, coefficient=weight)
    window = [[term(24, 1 / 96), replace(further, kind="MeanBackward0")]] * 4
    (finding,) = judged([facts(record(window, n)) for n in (1, 2, 3)]).findings
    assert (finding.rule, finding.severity) == ("reduction.missing_division", severity)
    assert ("% of the gradient's weight" in finding.summary) == (severity == "info")


@pytest.mark.parametrize(
    ("share", "rows", "main", "severity"),
    [
        ((1, 1), None, (40, 56), "info"),
        ((6, 1.2), None, (40, 56), "error"),
        ((2, 2), None, (40, 56), "info"),
        ((4, 1.5), 8, (40, 56), "info"),
        ((4, 1.5), 16, (40, 56), "error"),
        ((1, 1), None, (8, 40), "error"),
    ],
    ids=[
        "a plain mean",
        "a mask leaves elements out",
        "the highest half",
        "a slice of each row",
        "a mask of rows",
        "the tokens of the main loss",
    ],
)
def test_a_further_mean_beside_a_normalised_loss_is_information_if_it_is_plain(
    share: tuple[float, float], rows: int | None, main: tuple[int, int], severity: str
) -> None:
    """What leaves elements out has a count in the window, as the tokens of the main loss do."""
    counts, tokens = (8, 40), sum(main)
    further = [
        replace(
            term(n, 1 / (4 * n), "mean"), kind="MseLossBackward0", size=round(n * times), rows=rows
        )
        for n, times in zip(counts, share, strict=True)
    ]
    window = [[term(n, 1 / tokens, "sum"), f] for n, f in zip(main, further, strict=True)]
    (finding,) = judged([facts(record(window, n)) for n in (1, 2, 3)]).findings
    assert (finding.rule, finding.severity) == ("reduction.token_weights_unequal", severity)


# ---------------------------------------------------------------------- texts


@pytest.mark.parametrize(
    ("balances", "history"),
    [
        ((0.7, 0.7, 0.7), "The balance is 0.7, as in earlier windows."),
        ((1.103, 1.1, 1.093), "The balance is 1.093, and from 1.093 to 1.103 in windows so far."),
    ],
)
def test_an_unknown_balance_is_compared_with_the_earlier_ones(
    balances: tuple[float, ...], history: str
) -> None:
    windows = [facts(record([term(40, b / 80)] * 2, n)) for n, b in enumerate(balances, 1)]
    (finding,) = judged(windows).findings
    assert finding.rule == "reduction.balance_off" and finding.summary.startswith(history)


@pytest.mark.parametrize(
    ("lengths", "declares"), [((22,) * 4, "scale=B"), ((22, 23, 23, 16), "contract=")]
)
def test_a_balance_that_changes_is_no_scale_to_declare(
    lengths: tuple[int, ...], declares: str
) -> None:
    kind = "SumBackward0"  # of an episode
    episodes = [
        record([term(n, 3.0, "sum", kind=kind, elements=n, element_weight=3.0)], number)
        for number, n in enumerate(lengths, 1)
    ]
    (finding,) = judged([facts(each) for each in episodes]).findings
    assert (finding.rule, finding.severity) == ("reduction.balance_off", "info")
    assert declares in finding.fix


@pytest.mark.parametrize(
    ("m", "divisors", "micro_batches", "is_named"),
    [
        pytest.param(8, (8.0,), 1, True, id="divided by 8, and stepped after 1"),
        pytest.param(8, (), 1, False, id="multiplied by 0.125"),
        pytest.param(40, (40.0,), 1, False, id="divided by its own count"),
        pytest.param(2, (2.0,), 1, False, id="a half"),
        pytest.param(8, (8.0,), 3, False, id="accumulated"),
    ],
)
def test_a_regression_divided_by_more_than_its_window_may_lack_an_accumulation(
    m: int, divisors: tuple[float, ...], micro_batches: int, is_named: bool
) -> None:
    one = term(40, 1 / (40 * m * micro_batches), kind="L1LossBackward0", divisors=divisors)
    (finding,) = judged([facts(record([one] * micro_batches, n)) for n in (1, 2, 3)]).findings
    assert (finding.rule, finding.severity) == ("reduction.balance_off", "info")
    assert (f"if an accumulation over {m} is meant" in finding.summary) == is_named


@pytest.mark.parametrize(
    ("beside", "title", "effect"),
    [
        (0.5, "The balance of the binary cross entropy is 0.7, not 1", "the gradient of this loss"),
        (None, "The balance is 0.7, not 1", "With SGD, the effective learning rate"),
    ],
)
def test_the_balance_of_one_of_several_losses_is_not_that_of_the_gradient(
    beside: float | None, title: str, effect: str
) -> None:
    kind = "BinaryCrossEntropyWithLogitsBackward0"
    terms = [term(40, 0.7 / 80, kind=kind)]
    if beside is not None:
        terms.append(term(40, beside / 80, coefficient=beside / 2))
    (finding,) = judged([facts(record([terms] * 2, n)) for n in (1, 2, 3)]).findings
    assert (finding.rule, finding.title) == ("reduction.balance_off", title)
    assert f"If it is not: {effect}" in finding.summary


def lists(*items: int) -> StepFacts:
    """Ranked lists of so many items, one in each micro-batch: all their pairs have one mean."""
    pairs = [n * (n - 1) // 2 for n in items]
    weights = [1 / (count * len(items)) for count in pairs]
    return facts(
        record(
            [
                term(count, weight, "sum", kind="SumBackward0", elements=count)
                for count, weight in zip(pairs, weights, strict=True)
            ]
        )
    )


def test_the_pairs_of_ranked_lists_may_count_by_list() -> None:
    rule = "reduction.token_weights_unequal"
    result = judged([lists(5, 2, 7, 3)])
    assert not result.findings and "as a ranked list has pairs" in result.coverage[rule]
    assert rule in accused(judged([lists(5, 7)]))  # two may be so by chance
    others = [term(n, 1 / (4 * n), "sum", kind="SumBackward0") for n in (5, 2, 7, 3)]
    assert rule in accused(judged([facts(record(others))]))


def test_pairs_of_the_examples_of_a_micro_batch_may_count_by_micro_batch() -> None:
    rule = "reduction.token_weights_unequal"

    def compared(*weights: float, compares: bool = True) -> StepFacts:
        counts = zip((40, 60), weights, strict=True)
        terms = [term(n, weight, kind="MeanBackward0", elements=n) for n, weight in counts]
        return facts(record([dataclasses.replace(t, compares=compares) for t in terms]))

    means = [1 / 80, 1 / 120]
    result = judged([compared(*means)])
    assert not result.findings and "compare examples" in result.coverage[rule]
    assert rule in accused(judged([compared(*means, compares=False)]))


def rated(*rates: float) -> list[StepFacts]:
    return [facts(record([term(40, 1 / 80)] * 2, n, lr=rate)) for n, rate in enumerate(rates, 1)]


@pytest.mark.parametrize(
    ("before", "zeros", "found"),
    [
        (4, 10, True),
        (4, 9, False),
        (30, 14, False),
        (30, 15, True),
        (60, 60, True),  # a schedule for half of the training
        (1000, 99, False),
        (1000, 100, True),
        (0, 19, False),
        (0, 20, True),
    ],
)
def test_a_rate_of_zero_is_named_once_a_third_of_the_steps_have_it(
    before: int, zeros: int, found: bool
) -> None:
    result = judged(rated(*[0.1] * before, *[0.0] * zeros))
    assert ("schedule.zero_lr" in accused(result)) == found
    if not (before or found):  # all steps of a short run: a warm-up may begin like this
        assert result.coverage["schedule.zero_lr"].startswith("not_measured: the learning rate was")


@pytest.mark.parametrize(
    ("rates", "severity"),
    [
        ([0.9**step for step in range(219)], None),
        ([0.9**step for step in range(330)], "info"),
        ([0.9**step for step in range(670)], "warning"),
        ([0.5**step for step in range(67)], None),
        ([0.5**step for step in range(68)], "info"),
        ([0.5**step for step in range(102)], "warning"),
        ([0.1] * 4 + [1e-12] * 19, None),
        ([0.1] * 4 + [1e-12] * 20, "warning"),
        ([0.1] * 20 + [1e-8] * 300, None),  # where ReduceLROnPlateau ends
        ([1e-12] * 20 + [1e-3] * 100, None),  # a warm-up
    ],
)
def test_a_rate_that_decays_to_next_to_nothing_is_named(
    rates: list[float], severity: str | None
) -> None:
    found = [f.severity for f in judged(rated(*rates)).findings if f.rule == "schedule.zero_lr"]
    assert found == ([] if severity is None else [severity])


@pytest.mark.parametrize(("zeros", "found"), [(49, []), (50, ["info"])])
def test_a_rate_of_zero_of_one_of_several_optimizers_is_information(
    zeros: int, found: list[str]
) -> None:
    steps = [
        facts(record([term(40, 1 / 80)] * 2, n, lr=0.0), optimizers=["Adam", "SGD"])
        for n in range(1, zeros + 1)
    ]
    findings = [f for f in judged(steps).findings if f.rule == "schedule.zero_lr"]
    assert [f.severity for f in findings] == found
    assert all("of Optimizer 0 (Adam) is 0" in f.title for f in findings)
    assert all(f.summary.endswith("look at what sets its learning rate.") for f in findings)


@pytest.mark.parametrize(
    ("framework", "severity"), [({}, "warning"), ({"framework": "transformers"}, "info")]
)
def test_a_divisor_with_the_first_label_of_each_sequence_is_named(
    framework: dict[str, str], severity: str
) -> None:
    """Labels that a causal language model shifts, counted before: by the Trainer, or not."""
    windows = [[20, 31], [44, 12], [9, 30]]
    steps = [
        facts(
            record(
                [term(n, 1 / (sum(window) + 8), "sum", samples=4) for n in window],
                number,
                batches=2,
                batch_size=4,
            ),
            config=framework,
        )
        for number, window in enumerate(windows, 1)
    ]
    finding = next(f for f in judged(steps).findings if f.rule == "reduction.wrong_denominator")
    assert finding.severity == severity
    assert "the divisor is 47, but 39" in finding.summary
    assert "It has one more for each of 8 sequences" in finding.summary
