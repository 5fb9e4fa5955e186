"""Unequal weights: where they differ, and the other parts of the finding."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gradledger.records import StepRecord, Term
from gradledger_monitor.model.chart_metrics import chart_metrics
from gradledger_monitor.model.findings import EvaluationResult, Finding
from gradledger_monitor.model.step_facts import StepFacts
from gradledger_monitor.rules.balance.several_losses import FURTHER_TOKENS
from gradledger_monitor.rules.number_text import percent
from gradledger_monitor.rules.reduction.weights_not_evaluated import (
    BY_DATA,
    OF_SAMPLES,
    OTHER_DIVISOR,
)
from helpers.facts import accused, facts, judged, record, term

RULE = "reduction.token_weights_unequal"


def finding_of(*ranks: StepRecord) -> Finding | None:
    """The finding in one step."""
    return next((f for f in judged([facts(*ranks)]).findings if f.rule == RULE), None)


def rank(*weights: float) -> StepRecord:
    """Micro-batches of ten, twenty, ... tokens with these weights, averaged over ranks."""
    terms = [term(10 * position, weight, "sum") for position, weight in enumerate(weights, 1)]
    return record(terms, sync="averaged")


def differ(*ranks: StepRecord) -> str:
    finding = finding_of(*ranks)
    assert finding is not None
    return str(finding.evidence["differ"])


def test_it_states_whether_weights_differ_inside_a_rank_or_between_them() -> None:
    assert differ(rank(0.02, 0.03)) == "between micro-batches"
    assert differ(rank(0.02, 0.03), rank(0.02, 0.03)) == "between micro-batches"
    assert differ(rank(0.02, 0.02), rank(0.03, 0.03)) == "between ranks"
    assert differ(rank(0.02), rank(0.02, 0.03)) == "between micro-batches and between ranks"


def test_ranks_whose_tokens_weigh_alike_on_average_do_not_differ_however_many_they_hold() -> None:
    more = record([term(n, w, "sum") for n, w in ((20, 0.02), (40, 0.03))], sync="averaged")
    assert differ(rank(0.02, 0.03), more) == "between micro-batches"


@pytest.mark.parametrize(
    ("constant", "ranks", "mean"), [(None, 1, 2.5), (0.5, 1, 1.25), (2.0, 1, 5.0), (2.0, 2, 5.0)]
)
def test_the_mean_over_tokens_has_the_constant_of_the_loss(
    constant: float | None, ranks: int, mean: float
) -> None:
    """QuantileLoss: twice the error."""
    terms = [term(n, (constant or 1.0) / (2 * n), coefficient=constant) for n in (10, 30)]
    sent = record(terms, sync="averaged")
    for micro_batch, loss in zip(sent.micro_batches, (4.0, 2.0), strict=True):
        micro_batch.loss = (constant or 1.0) * loss / 2
    finding = finding_of(*[sent] * ranks)
    assert finding is not None
    assert f"the mean over all elements is {mean:g}" in finding.summary
    assert finding.evidence["loss_token"] == mean


@pytest.mark.parametrize(
    ("scale", "factor", "loss"),
    [
        (None, 1 / 8, "The accumulated loss, times the 0.125 that the loop multiplies the "
         "gradients by, is 3; the mean over all elements is 3.5."),
        (64.0, 1 / 64, "The accumulated loss is 24; the mean over all elements is 3.5."),
        (64.0, None, "The accumulated loss is 24; the mean over all elements is 3.5."),
    ],
)  # fmt: skip
def test_the_accumulated_loss_has_the_factor_that_the_gradients_have(
    scale: float | None, factor: float | None, loss: str
) -> None:
    """poutyne: means times the number of samples, and gradients divided by the sum of these."""
    missing = {} if factor else {"post_factor": "no sample"}
    terms = [term(n, 4 / n * (scale or 1.0)) for n in (10, 30)]
    sent = record(terms, post_factor=factor, missing=missing)
    for micro_batch, mean in zip(sent.micro_batches, (2.0, 4.0), strict=True):
        micro_batch.loss, micro_batch.scale = 4 * mean * (scale or 1.0), scale
    finding = finding_of(sent)
    assert finding is not None and finding.summary.endswith(loss)


@pytest.mark.parametrize(
    ("constant", "divisor", "shown"),
    [(0.5, 2, 1.5), (2.0, 2, 6.0), (0.5, 1, 3.0), (2.0, 4, 3.0), (2.0, 1, 6.0), (None, 2, 3.0)],
)
def test_the_chart_of_the_loss_of_a_large_batch_has_the_constant_but_no_division(
    constant: float | None, divisor: int, shown: float
) -> None:
    """Two micro-batches. With 0.5 and no division, the constant is 1/K."""
    factor = (constant or 1.0) / divisor
    sent = record([term(10, factor / 10, coefficient=constant) for _ in range(2)])
    for micro_batch in sent.micro_batches:
        micro_batch.loss = 3.0 * factor
    assert chart_metrics(facts(sent))["loss_token"] == pytest.approx(shown)


@pytest.mark.parametrize(("counts", "severity"), [((30, 30), "error"), ((20, 40), "info")])
def test_a_main_loss_excuses_another_only_if_its_counts_differ(
    counts: tuple[int, int], severity: str
) -> None:
    """Equal weights of equal counts, as of a dice loss, are no choice."""
    each = [
        [
            replace(term(count, 1 / 60, "sum"), kind="MseLossBackward0"),
            term(tokens, 0.4 / (2 * tokens)),
        ]
        for count, tokens in zip(counts, (10, 30), strict=True)
    ]
    finding = finding_of(record(each))
    assert finding is not None and finding.severity == severity


def test_without_a_loss_that_was_seen_nothing_is_stated_of_it() -> None:
    blind = rank(0.02, 0.06)
    for micro_batch in blind.micro_batches:
        micro_batch.loss = None
    finding = finding_of(blind)
    assert finding is not None
    assert finding.summary.endswith("as one in the micro-batch with 10 elements.")


def test_without_the_factor_after_backward_the_balance_is_not_reported_and_the_weights_are() -> (
    None
):
    blind = record([term(10, 0.02, "sum"), term(20, 0.06, "sum")], post_factor=None)
    finding = finding_of(blind)
    assert finding is not None
    assert finding.evidence["balance"] is None
    assert finding.evidence["relative_weights"] == [0.4286, 1.2857]


@pytest.mark.parametrize(
    ("contract", "is_reported"),
    [("sequence", False), ("sample", False), ("token", True), (None, True)],
)
def test_who_declares_another_contract_is_not_reported_that_tokens_differ(
    contract: str | None, is_reported: bool
) -> None:
    step = facts(rank(0.02, 0.06), contract=contract)
    assert (RULE in {f.rule for f in judged([step]).findings}) is is_reported


def test_it_is_averaged_over_the_last_fifty_windows_even_ones_included() -> None:
    uneven, even = [term(10, 0.05), term(30, 0.05 / 3)], [term(10, 0.025), term(30, 0.025)]
    course = [uneven, *[even] * 48, uneven, *[even] * 9, uneven]
    steps = [facts(record(terms, number)) for number, terms in enumerate(course, 1)]
    finding = next(f for f in judged(steps).findings if f.rule == RULE)
    assert finding.evidence["misallocation"] == 0.25
    assert finding.evidence["misallocation_recent"] == 2 * 0.25 / 50
    assert "(1.0% on average over the last 50 windows). Weights differ" in finding.summary


def test_from_the_second_window_on_the_average_is_reported_too() -> None:
    uneven = [term(10, 0.05), term(30, 0.05 / 3)]
    finding = [judged([facts(record(uneven, n + 1)) for n in range(k)]).findings[0] for k in (1, 2)]
    assert "over the last" not in finding[0].summary
    assert "(25.0% on average over the last 2 windows). Weights differ" in finding[1].summary


def test_weights_that_padding_makes_uneven_are_reported_as_padding() -> None:
    padded = [term(n, 1 / (2 * size), "sum", size=size) for n, size in ((40, 64), (50, 128))]
    assert finding_of(record(padded)) is None


def test_the_loss_over_all_tokens_is_reported_only_where_both_were_seen() -> None:
    several = rank(0.02, 0.06)
    several.micro_batches[0].terms.append(term(10, 0.0, kind="MeanBackward0"))
    finding = finding_of(several)
    assert finding is not None and "The loop accumulated" not in finding.summary


def summed(kind: str, *tokens: int) -> Finding:
    """Sums of one kind that nothing divides, a window for each count of tokens."""
    steps = [
        facts(record([term(n, 1.0, "sum", kind=kind, rows=None, positions=None)] * 2, number))
        for number, n in enumerate(tokens, 1)
    ]
    return next(f for f in judged(steps).findings if f.rule == "reduction.unnormalised_sum")


def test_a_sum_is_meant_perhaps_unless_it_is_a_cross_entropy_or_moves_with_the_tokens() -> None:
    assert summed("NllLossBackward0", 40, 40).severity == "warning"
    assert summed("MseLossBackward0", 40, 40).severity == "info"
    assert summed("MseLossBackward0", 40, 60).severity == "warning"


def test_a_sum_of_steps_of_one_size_is_meant_perhaps_if_each_has_one_micro_batch() -> None:
    for tokens, optimizer, severity in (
        ((40, 40, 40), "SGD", "info"),
        ((40, 40, 40), "Adam", "warning"),
        ((400, 400, 401), "SGD", "warning"),
        ((40, 39, *[40] * 70), "SGD", "warning"),
    ):
        windows = [record([term(n, 1.0, "sum")], at) for at, n in enumerate(tokens, 1)]
        (finding,) = judged([facts(each, optimizers=[optimizer]) for each in windows]).findings
        assert (finding.rule, finding.severity) == ("reduction.unnormalised_sum", severity)
        assert ("chosen for the sum" in finding.summary) == (severity == "info")


@pytest.mark.parametrize(("off", "severity"), [(0.005, "info"), (0.02, "warning"), (0.06, "error")])
def test_how_bad_it_is_depends_on_the_share_on_wrong_tokens(off: float, severity: str) -> None:
    each = [term(20, (0.5 + off) / 20), term(20, (0.5 - off) / 20)]
    windows = [facts(record(each, number)) for number in (1, 2)]
    finding = next((f for f in judged(windows).findings if f.rule == RULE), None)
    assert finding is not None and finding.severity == severity
    assert finding.evidence["misallocation"] == pytest.approx(off)


def epochs(*lengths: int, short: int = 10) -> list[StepFacts]:
    """Windows of two micro-batches of 40 rows; in the last of each epoch, the second is short."""
    steps: list[StepFacts] = []
    for length in lengths:
        for index in range(length):
            rows = (40, short if index == length - 1 else 40)
            terms = [term(n, 1 / (2 * n)) for n in rows]
            steps.append(facts(record(terms, len(steps) + 1)))
    return steps


@pytest.mark.parametrize(
    ("epoch", "severity"), [(4, "error"), (6, "error"), (20, "warning"), (40, "info")]
)
def test_a_short_last_batch_is_judged_by_its_share_of_the_epoch(epoch: int, severity: str) -> None:
    finding = next(f for f in judged(epochs(epoch, epoch)).findings if f.rule == RULE)
    assert finding.title == "A short batch has the weight of a full one"
    assert (finding.severity, finding.steps) == (severity, 2)
    assert finding.evidence["misallocation"] == 0.3
    assert finding.evidence["misallocation_recent"] == pytest.approx(0.3 / epoch, abs=1e-6)
    assert "drop_last=True" in finding.fix
    assert finding.summary == (
        f"One micro-batch of step {2 * epoch} holds 10 elements, all others hold 40, as the last "
        "batch of an epoch does. Each of its elements counts 4.0 times as much as another: 30.0% "
        "of the weight of the gradient in this step is on the wrong elements, and "
        f"{percent(0.3 / epoch)} on average in the {epoch} steps since the last short batch."
    )


@pytest.mark.parametrize(
    ("kind", "rows", "samples", "element"),
    [
        (None, None, 4, "token"),  # flattened sequences
        (None, None, None, "element"),  # nodes of a graph, or images whose samples are not proved
        (None, None, "all", "sample"),
        ("NllLoss2DBackward0", 4, None, "element"),  # pixels, or sequences that are not flattened
        ("GatherBackward0", 4, None, "token"),
        ("MseLossBackward0", 4, None, "element"),
        ("CtcLossBackward0", None, None, "utterance"),
    ],
)
def test_an_element_is_a_token_only_where_the_loss_is_one_of_sequences(
    kind: str | None, rows: int | None, samples: int | str | None, element: str
) -> None:
    more: dict[str, Any] = {} if kind is None else {"kind": kind}
    if rows is not None:
        more |= {"rows": rows, "positions": None if kind == "NllLoss2DBackward0" else rows}
    terms = [
        term(n, 1 / 2 / n, samples=n if samples == "all" else samples, **more) for n in (16, 48)
    ]
    finding = finding_of(record(terms))
    assert finding is not None
    assert finding.title == f"{element.capitalize()} weights differ between micro-batches"
    assert f"with 16 {element}s counts" in finding.summary


def test_a_short_batch_needs_earlier_windows_of_equal_batches() -> None:
    ragged = [facts(record([term(n, 1 / (2 * n)) for n in (30, 20)], 1))]
    in_second = [facts(record([term(n, 1 / (2 * n)) for n in (40, 10)], 2))]
    for steps in (epochs(1), [*ragged, *in_second]):
        finding = next(f for f in judged(steps).findings if f.rule == RULE)
        assert finding.title.startswith("Element weights differ")


@pytest.mark.parametrize(("equal", "short"), [(2, False), (3, True)])
def test_after_batches_of_several_lengths_a_short_one_needs_three_windows_of_equal_ones(
    equal: int, short: bool
) -> None:
    ragged = facts(record([term(n, 1 / (2 * n)) for n in (30, 20)], 1))
    later = [facts(record([term(40, 1 / 80)] * 2, n)) for n in range(2, 2 + equal)]
    last = facts(record([term(n, 1 / (2 * n)) for n in (40, 10)], 2 + equal))
    finding = next(f for f in judged([ragged, *later, last]).findings if f.rule == RULE)
    assert (finding.title == "A short batch has the weight of a full one") == short


@pytest.mark.parametrize(
    ("second", "title"),
    [
        (10, "A short batch has the weight of a full one"),
        (30, "Element weights differ between micro-batches"),  # as answers that end early
    ],
)
def test_each_epoch_ends_with_an_equal_number_of_elements(second: int, title: str) -> None:
    terms = [[term(n, 1 / (2 * n)) for n in (40, last)] for last in (40, 10, 40, second)]
    steps = [facts(record(each, number)) for number, each in enumerate(terms, 1)]
    finding = next(f for f in judged(steps).findings if f.rule == RULE)
    assert finding.title == title
    assert ("drop_last=True" in finding.fix) == (second == 10)


def test_a_short_batch_alone_in_its_step_is_no_uneven_weight_and_ends_an_epoch_all_the_same() -> (
    None
):
    steps = epochs(3)
    alone = facts(record([term(10, 1 / 10)], 3))
    assert not [f for f in judged([*steps[:2], alone]).findings if f.rule == RULE]
    later = facts(record([term(n, 1 / (2 * n)) for n in (40, 10)], 4))
    finding = next(f for f in judged([*steps[:2], alone, later]).findings if f.rule == RULE)
    assert finding.title == "A short batch has the weight of a full one"


def test_a_short_batch_with_its_own_weight_is_balanced() -> None:
    steps = [*epochs(3)[:2], facts(record([term(n, 1 / 50) for n in (40, 10)], 3))]
    assert not [f for f in judged(steps).findings if f.rule == RULE]


def test_one_micro_batch_is_no_evidence_that_a_loss_of_unknown_unit_has_equal_weights() -> None:
    """A sum of squared errors that is divided by another window's count, stepped on early once."""

    def squares(*weights: float) -> list[Term]:
        return [
            replace(term(10 + i, w, "sum"), kind="MseLossBackward0") for i, w in enumerate(weights)
        ]

    steps = [facts(record(squares(1 / 35), 1)), facts(record(squares(1 / 30, 1 / 41), 2))]
    evaluation = judged(steps)
    reason = OTHER_DIVISOR
    assert evaluation.coverage["reduction.token_weights_unequal"] == f"not_measured: {reason}"
    assert evaluation.verdict == "incomplete", "information about the balance does not answer it"


def test_unequal_weights_of_equal_counts_follow_from_the_place_in_the_window_or_from_data() -> None:
    """A loop that does not divide its first loss does so always; a loss over its value differs."""

    def evaluation(*windows: tuple[float, ...]) -> EvaluationResult:
        steps = [
            facts(record([term(10, weight, "sum") for weight in weights], number))
            for number, weights in enumerate(windows, 1)
        ]
        return judged(steps)

    def said(*windows: tuple[float, ...]) -> str:
        return evaluation(*windows).coverage[RULE]

    by_place, other = (0.1, 0.025, 0.025), (0.05, 0.04, 0.03)
    assert said(by_place) == f"not_measured: {BY_DATA}"
    assert said(by_place, by_place) == "finding"
    assert said(by_place, other) == f"not_measured: {BY_DATA}"
    assert said(by_place, other, other) == "finding"
    for windows, first in (((by_place, by_place), 1), ((by_place, other, other), 2)):
        assert accused(evaluation(*windows))[RULE] == first


def test_micro_batches_that_the_k_of_the_window_before_divides_are_no_weights_of_data() -> None:
    """A loop that grows K divides each loss by the K of the moment, in the middle of a window."""

    def of(*divisors: int, number: int = 1) -> StepFacts:
        return facts(record([term(10, 1 / (10 * k)) for k in divisors], number))

    grown = judged([of(2, 2), of(2, 3, 3, number=2)])
    (finding,) = (f for f in grown.findings if f.rule == RULE)
    assert "micro-batch 1 counts 1.5 times as much as one in micro-batch 2" in finding.summary
    assert finding.severity == "warning"
    other = judged([of(2, 2), of(5, 3, 3, number=2)])
    assert not [f for f in other.findings if f.rule == RULE]


def test_the_parts_of_a_micro_batch_are_named_by_the_tokens_of_all() -> None:
    chunks = [term(30, 0.01, "sum", head=1), term(10, 0.01, "sum", head=1)]
    finding = finding_of(record([chunks, [term(20, 0.02, "sum", head=1)]]))
    assert finding is not None
    assert (
        "an element in the micro-batch with 20 elements counts 2.0 times as much as one in the "
        "micro-batch with 40 elements"
    ) in finding.summary


def test_losses_of_one_backward_are_named_as_such_and_by_their_tokens() -> None:
    """The mean of the means of chunks of three results of the model, with one backward."""
    chunks = [term(n, 1 / (3 * n), head=1, logits=n) for n in (4, 10, 25)]
    finding = finding_of(record([chunks]))
    assert finding is not None
    assert finding.evidence["differ"] == "between the losses of a micro-batch"
    assert (
        "in the loss with 4 elements counts 6.2 times as much as one in the loss with 25 elements"
    ) in finding.summary
    # chunks of one result, of the same sizes in each micro-batch, are no documents
    chunks = [term(n, 1 / (12 * n), head=1, logits=1) for n in (4, 10, 25)]
    assert finding_of(record([chunks] * 4)) is not None
    uneven = [term(n, w, "sum", head=1) for n, w in ((10, 0.02), (10, 0.03), (30, 0.025))]
    alike = finding_of(record([uneven]))
    assert alike is not None
    assert "in one loss counts 1.5 times as much as one in another loss" in alike.summary


def weighed(divide_by: str, samples: int = 3, size: int = 20) -> StepRecord:
    """A loss that weighs its tokens from 0.5 to 1.5, and masks others: over the given count."""
    counts = (5, 12, 8, 15)
    divisors = {"own": [4 * n for n in counts], "window": [sum(counts)] * 4, "all": [4 * size] * 4}
    return record(
        [
            term(
                n,
                1.1 / divisor,
                "none",
                size=size,
                rows=size,
                samples=samples,
                elements=size,
                element_weight=1 / divisor,
                weight_min=0.5 / divisor,
                weight_max=1.5 / divisor,
            )
            for n, divisor in zip(counts, divisors[divide_by], strict=True)
        ]
    )


def test_a_mean_over_the_tokens_of_each_micro_batch_that_the_loss_weighs_is_reported() -> None:
    found = finding_of(weighed("own"))
    assert found is not None
    assert "besides those that the loss gives its elements" in found.summary
    assert found.evidence["misallocation"] == pytest.approx(0.175)
    for right in (weighed("window"), weighed("own", samples=1)):
        assert finding_of(right) is None


def test_a_cross_entropy_beside_another_loss_may_count_ignored_targets_too() -> None:
    def names(divisor: float, reduction: str = "sum") -> dict[str, str]:
        dice = replace(term(18, 1 / 72, "none"), kind="SumBackward0")
        batches = [[term(n, 1 / divisor, reduction, size=64), dice] for n in (40, 50, 60, 30)]
        return {f.rule: f.title for f in judged([facts(record(batches))]).findings}

    counts_all = "The divisor of the cross entropy counts ignored positions"
    assert names(4 * 64) == {"reduction.wrong_denominator": counts_all}
    assert names(180) == {}
    assert names(4 * 64, "none") == {}  # the loop masks it: the consistency of FixMatch


@pytest.mark.parametrize(
    ("heads", "columns", "share", "is_named"),
    [
        ((None, None), 4, 1 / 2, False),  # the boxes of two images, each divided by its boxes
        ((1, 2), 1, 1 / 2, True),  # two tasks
        ((None, None), 1, 1.0, True),  # their sum is no mean
    ],
)
def test_a_mean_of_losses_of_one_form_may_be_one_of_samples(
    heads: tuple[int | None, int | None], columns: int, share: float, is_named: bool
) -> None:
    """Of two losses in each of two micro-batches, which K and their count divide."""

    def loss(rows: int, head: int | None) -> Term:
        weight = share / rows / 2
        sizes = {"size": rows * columns, "rows": rows, "positions": rows}
        each = term(rows * columns, weight, "sum", head=head, **sizes)
        return replace(each, kind="SmoothL1LossBackward0")

    counts = [(3, 7), (9, 2)]
    batches = [[loss(n, head) for n, head in zip(pair, heads, strict=True)] for pair in counts]
    evaluation = judged([facts(record(batches, number)) for number in (1, 2)])
    assert (RULE in accused(evaluation)) == is_named
    assert evaluation.coverage[RULE].endswith(OF_SAMPLES) != is_named


@pytest.mark.parametrize(
    ("counts", "is_named"),
    [
        ([(48, 46, 44), (48, 46, 44)], False),  # two sequences, three predictions
        ([(24, 24, 20), (24, 24, 20)], True),  # chunks
        ([(0, 4, 3, 2), (0, 4, 3, 2)], True),
        ([(48, 46, 44), (12, 10, 8)], True),  # means of micro-batches, too
    ],
)
def test_losses_that_predict_one_token_further_each_are_no_chunks(
    counts: list[tuple[int, ...]], is_named: bool
) -> None:
    batches = [[term(n, 1 / max(n, 1) / len(c) / 2, "mean", head=1) for n in c] for c in counts]
    evaluation = judged([facts(record(batches, number)) for number in (1, 2)])
    assert (RULE in accused(evaluation)) == is_named
    assert evaluation.coverage[RULE].endswith(FURTHER_TOKENS) != is_named


@pytest.mark.parametrize(("own_count", "is_named"), [(False, True), (True, False)])
def test_a_further_loss_may_lack_the_division_where_ranks_have_different_k(
    own_count: bool, is_named: bool
) -> None:
    def of(k: int, number: int) -> StepRecord:
        weight, divisor = 1 / (7 * 50), k if own_count else 1
        aux = [
            term(8, 0.1 / divisor / 8, undivided=not own_count, coefficient=0.1 / divisor)
            for _ in range(k)
        ]
        for each in aux:
            each.kind = "MeanBackward0"
        batches = [[term(50, 2 * weight, "sum"), each] for each in aux]
        return record(batches, number, sync="averaged", wrapper="ddp")

    findings = judged([facts(of(3, n), of(4, n)) for n in (1, 2)]).findings
    named = [f for f in findings if f.rule == "reduction.missing_division"]
    assert bool(named) == is_named
    for finding in named:
        assert finding.title.endswith("is not divided by K")
        assert "of which the ranks have 3 to 4" in finding.summary
        assert "its weight is 3.5 times its coefficient" in finding.summary
        assert finding.evidence["factor"] == 3.5
