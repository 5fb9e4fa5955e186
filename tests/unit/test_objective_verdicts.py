"""Each objective of a window has its own numbers and its own verdict."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from pytest import approx

from gradledger import records
from gradledger_monitor.model.findings import EvaluationResult
from gradledger_monitor.rules.balance.patterns import Closed
from gradledger_monitor.rules.objective_verdicts import ObjectiveVerdict, objective_verdicts
from gradledger_monitor.rules.rule import Window
from helpers.facts import facts, judged, record, term

ROUTER = "MeanBackward0"


def router(weight: float, **more: Any) -> records.Term:
    """A mean over four elements."""
    known = {"size": 4, "rows": 4, "positions": 1, "undivided": True, "coefficient": 0.01}
    return records.Term(ROUTER, "mean", 4, weight=weight, **{**known, **more})


def penalty(total: float) -> records.Term:
    """A penalty on the parameters, whose one value has this weight."""
    return records.Term(
        "SumBackward0", "sum", penalty=True, elements=9, element_weight=total, coefficient=total
    )


def verdicts(*micro_batches: list[records.Term], **run: Any) -> dict[str, ObjectiveVerdict]:
    """By name, in the order in which pages show them."""
    window = Window(facts(record(micro_batches), **run))
    return {verdict.name: verdict for verdict in objective_verdicts(window)}


def test_each_objective_is_named_and_has_its_own_numbers() -> None:
    found = verdicts(
        [term(10, 1 / 20), router(0.01 / 8), penalty(1e-4)],
        [term(30, 1 / 60), router(0.01 / 8), penalty(1e-4)],
    )
    assert list(found) == ["cross entropy", "mean", "penalty on the parameters"]
    loss, mean, decay = found.values()
    assert (loss.unit, loss.count, loss.balance, loss.misallocation) == approx_of(
        "elements", 40, 1.0, 0.25
    )
    assert (mean.unit, mean.count, mean.balance, mean.misallocation) == approx_of(
        "elements", 8, 0.01, 0.0
    )
    assert (decay.unit, decay.count, decay.misallocation) == (None, None, None)
    assert (loss.status, loss.text) == ("finding", "element weights differ")
    assert (mean.status, mean.text) == ("ok", "equal weights; B is its coefficient")
    assert decay.status == "ok"
    assert sum(v.share or 0 for v in found.values()) == approx(1.0)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("ChunkedLossFunctionBackward", "ChunkedLossFunction"),  # a class of the script
        ("LogSigmoidBackward0", "log sigmoid"),
        ("MyLoss", "my loss"),
    ],
)
def test_a_loss_that_is_in_no_table_is_called_as_its_function(kind: str, name: str) -> None:
    assert list(verdicts([replace(term(10, 1 / 10), kind=kind)])) == [name]


def approx_of(unit: str, *numbers: float) -> tuple[Any, ...]:
    return unit, *(approx(number) for number in numbers)


def test_a_further_loss_that_is_not_divided_is_named_beside_a_balanced_one() -> None:
    found = verdicts(*[[term(10, 1 / 40), router(0.01 / 4)]] * 4)
    assert found["cross entropy"].text == "balanced"
    assert found["mean"].text == "not divided by K = 4"
    assert found["mean"].balance == approx(0.04)


def ramped(*constants: float) -> EvaluationResult:
    """A mean beside a balanced loss, with another constant in each window."""
    return judged(
        [
            facts(record([[term(10, 1 / 40, divisors=[4.0]), router(c / 4, coefficient=c)]] * 4, n))
            for n, c in enumerate(constants, 1)
        ]
    )


def test_a_constant_that_changes_may_contain_the_division_by_k() -> None:
    evaluation = ramped(0.0025, 0.005, 0.0075, 0.01)
    assert (evaluation.findings, evaluation.verdict) == ([], "balanced")
    assert "of 4 windows (the constant" in evaluation.coverage["reduction.missing_division"]


def test_a_further_loss_that_was_found_undivided_stays_so_at_other_constants() -> None:
    (finding,) = ramped(0.1, 0.1, 0.1, 0.2, 0.2).findings
    assert (finding.rule, finding.last_step) == ("reduction.missing_division", 5)


@pytest.mark.parametrize(
    ("outer", "text"),
    [
        (0.5, "not divided by K = 4"),  # of 0.5 * 0.5, which is a weight
        (0.25, "equal weights"),  # a weight, or the division by K
        (None, "equal weights"),
    ],
)
def test_a_constant_of_one_over_k_does_not_balance_a_loss_beside_an_undivided_one(
    outer: float | None, text: str
) -> None:
    quarter = router(1 / 16, coefficient=0.25, outer_coefficient=outer)
    found = verdicts(*[[term(10, 1 / 10, undivided=True), quarter]] * 4)
    assert found["cross entropy"].text == "not divided by K = 4"
    assert found["mean"].balance == approx(1.0) and found["mean"].text == text
    divided = verdicts(*[[term(10, 1 / 40), quarter]] * 4)
    assert divided["mean"].text == "balanced"


def test_a_weight_of_one_over_k_normalises_no_loss_beside_an_undivided_one() -> None:
    """The exits of a model, weighted by 1/4 and 1: none is stated to be divided."""
    last = term(10, 1 / 10, undivided=True, head=1)
    early = term(10, 1 / 40, undivided=True, head=2, coefficient=0.25)
    (found,) = judged([facts(record([[last, early]] * 4))]).findings
    assert found.title.startswith("The first cross entropy is not divided by K = 4")
    assert "normalised" not in found.summary


def test_no_optimizer_cancels_a_factor_of_one_loss_beside_one_that_is_divided() -> None:
    heavy = [term(10, 1 / 10, undivided=False, divisors=[1.0])]
    assert "no optimizer cancels" not in of_missing([heavy] * 4)
    light = router(1 / 16, divisors=[4.0], undivided=False, coefficient=None)
    beside = of_missing([[term(10, 1 / 10, undivided=False, divisors=[1.0]), light]] * 4)
    assert "its weight is 4 times too large, which no optimizer cancels" in beside


def of_missing(micro_batches: list[list[records.Term]]) -> str:
    steps = [facts(record(micro_batches, number)) for number in (1, 2)]
    findings = {finding.rule: finding for finding in judged(steps).findings}
    return findings["reduction.missing_division"].summary


def test_many_losses_of_one_kind_are_listed_by_their_number() -> None:
    step = [records.Term("SmoothL1LossBackward0", "mean", 1, size=1, weight=1.0) for _ in range(12)]
    found = verdicts([*step, router(0.01 / 4)])
    assert {"first smooth L1 loss", "smooth L1 loss 12"} < set(found)
    assert [found[f"smooth L1 loss {n}"].key[-3:] for n in (5, 12)] == ["0#4", "#11"]
    coverage = judged([facts(record([[*step, router(0.01 / 4)]]))]).coverage
    assert coverage["reduction.token_weights_unequal"] == (
        "ok: equal weights: smooth L1 loss (12 of them), mean"
    )


def test_a_verdict_on_single_micro_batches_names_their_losses() -> None:
    """Nothing is compared there, which is no reason to conceal what the balance is that of."""
    sums = [term(10, 1 / 10, "sum", kind=kind) for kind in ("MseLossBackward0", "SumBackward0")]
    evaluation = judged([facts(record([sums]))])
    (reduction,) = [node for node in evaluation.tree if node.node == "reduction"]
    assert (evaluation.verdict, reduction.status) == ("balanced", "ok")
    assert reduction.reason == (
        "there is one micro-batch, whose weight is compared with none: mean squared error, sum"
    )


def test_a_loss_that_is_divided_by_another_number_than_its_window_holds_states_which() -> None:
    step = facts(record([term(50, 1 / 250, divisors=[5.0])] * 4))
    (verdict,) = objective_verdicts(Window(step, [Closed(4, 0.8, 200.0, "pending")]))
    assert verdict.text == "divided by 5, and not by this window's number of micro-batches, 4"


def test_one_objective_has_no_share_of_several() -> None:
    (only,) = verdicts([term(10, 1 / 40)], [term(30, 1 / 40)]).values()
    assert (only.text, only.share) == ("balanced", None)


def test_a_balance_that_is_not_measured_says_so() -> None:
    window = Window(facts(record([term(10, 1 / 40), term(30, 1 / 40)], post_factor=None)))
    (only,) = objective_verdicts(window)
    assert only.status == "ok" and only.balance is None
    assert only.text == "equal weights; B not measured: the gradient sample is missing"


def test_a_loss_that_may_be_several_is_not_evaluated_although_its_weights_differ() -> None:
    step = record([term(10, 1 / 20), term(30, 1 / 60)], loader_batches=[1, 1])
    (only,) = objective_verdicts(Window(facts(step)))
    assert only.status == "not_measured"
    assert only.text.startswith("several DataLoaders delivered the batches of the step")
    assert judged([facts(step)]).coverage["reduction.token_weights_unequal"].endswith(only.text)


def test_a_window_without_weights_has_no_objectives() -> None:
    assert objective_verdicts(Window(facts(record([term(10, 0.1)], skipped=True)))) == []


def test_a_run_is_incomplete_if_the_weights_of_one_of_its_optimizers_were_never_seen() -> None:
    run = {"optimizers": ["SGD", "AdamW"]}
    fair, unseen = record([term(10, 1 / 10)]), record([[]])
    unseen.optimizer = 1
    evaluation = judged([facts(fair, **run), facts(unseen, **run)])
    assert evaluation.verdict == "incomplete"
    assert evaluation.coverage["reduction.token_weights_unequal"] == (
        "not_measured: Optimizer 1 (AdamW) is not judged (no loss term was seen); "
        "equal weights: cross entropy"
    )


def critic(weight: float, penalty: float, **divided: Any) -> list[records.Term]:
    """The score of a critic, and ten times its gradient penalty: means over 16 rows."""
    rows = {"size": 16, "rows": 16, "elements": 16, **divided}
    return [
        records.Term(ROUTER, "mean", 16, weight=weight / 16, element_weight=weight / 16, **rows),
        records.Term(
            ROUTER,
            "mean",
            16,
            weight=penalty / 16,
            element_weight=penalty / 16,
            coefficient=10.0,
            **rows,
        ),
    ]


def test_a_heavy_penalty_with_a_constant_does_not_excuse_the_loss_beside_it() -> None:
    undivided = critic(1.0, 10.0, undivided=True)
    assert rules_of([undivided] * 2) == ["reduction.missing_division"]
    divided = critic(0.5, 5.0, undivided=False, divisors=[2.0])
    assert rules_of([divided] * 2) == []
    one = critic(1.0, 10.0, undivided=True)
    assert rules_of([one]) == []
    weighted = [replace(one[0], coefficient=3.0, weight=3 / 16, element_weight=3 / 16), one[1]]
    assert "reduction.missing_division" not in rules_of([weighted] * 2)  # 6/2 and 20/2, or not


def rules_of(micro_batches: list[list[records.Term]]) -> list[str]:
    """The rules that find something in three such windows."""
    evaluation = judged([facts(record(micro_batches, number)) for number in (1, 2, 3)])
    return [finding.rule for finding in evaluation.findings if finding.severity != "info"]


def test_the_k_of_a_loss_is_that_of_its_task_if_each_task_has_a_backward() -> None:
    both = [term(8, 1 / 8, undivided=True, head=1), term(9, 1 / 9, undivided=True, head=2)]
    texts = {v.text for v in objective_verdicts(Window(facts(record(both * 3))))}
    assert texts == {"not divided by K = 3"}
    (found,) = judged([facts(record(both * 3))]).findings
    assert "the gradient is 3 times that of the mean" in found.summary


def test_a_finding_is_about_the_whole_loss_if_k_divides_none_of_its_terms() -> None:
    def title(**further: Any) -> str:
        both = [
            term(8, 1 / 8, undivided=True, head=1),
            term(8, 1 / 16, head=2, **{"coefficient": 0.5, "undivided": True} | further),
        ]
        evaluation = judged([facts(record([both] * 3, number)) for number in (1, 2, 3)])
        return next(f.title for f in evaluation.findings if f.rule == "reduction.missing_division")

    assert title() == "The loss is not divided by K = 3"
    assert title(coefficient=None, undivided=False, divisors=[2.0]) != title()


BINARY = "BinaryCrossEntropyWithLogitsBackward0"


def binary(tokens: int, coefficient: float, weight: float) -> records.Term:
    return records.Term(
        BINARY,
        "mean",
        tokens,
        size=tokens,
        rows=tokens,
        positions=tokens,
        weight=weight,
        undivided=True,
        coefficient=coefficient,
    )


def test_losses_that_a_micro_batch_lacks_do_not_shift_the_others() -> None:
    # a detector: without an object there is no class loss, and the loss of the object map stays
    found = verdicts(
        [binary(12, 0.5, 0.5 / 12 / 2), binary(100, 4.0, 4.0 / 100 / 2)],
        [binary(100, 4.0, 4.0 / 100 / 2)],
    )
    assert [v.balance for v in found.values()] == approx([4.0, 0.25])
    assert [v.misallocation for v in found.values()] == approx([0.0, 0.0])
    assert [v.text for v in found.values()] == [
        "equal weights; B is its coefficient",
        "equal weights",
    ]


def test_losses_of_one_form_in_different_numbers_are_not_matched() -> None:
    maps = binary(100, 4.0, 4.0 / 100 / 2)
    found = verdicts(
        [binary(12, 0.5, 0.5 / 12 / 2), binary(40, 0.5, 0.5 / 40 / 2), maps],
        [binary(36, 0.5, 0.5 / 36 / 2), maps],
    )
    assert [v.status for v in found.values()] == ["ok", "not_measured"]
    assert "different numbers of such losses" in list(found.values())[1].text


def test_a_balance_that_is_off_does_not_make_weights_equal() -> None:
    # divided by half the boxes of all ranks, which is no count of this rank's elements
    def boxes(elements: int, divisor: float) -> records.Term:
        return records.Term(
            "SumBackward0",
            "sum",
            elements,
            size=elements,
            rows=elements // 4,
            positions=elements // 4,
            weight=20 / divisor,
            undivided=False,
            divisors=[divisor],
            coefficient=5.0,
        )

    past: list[Closed] = []
    for step in range(1, 5):
        window = [[boxes(8, 2.5)], [boxes(16, 20 / 4.8)]]
        last = Window(facts(record(window, number=step)), past)
        past.append(last.closed())
    assert last.balance.pattern == "constant"
    (found,) = objective_verdicts(last)
    assert found.misallocation and found.status == "not_measured"
    assert "not the count of the elements" in found.text


@pytest.mark.parametrize(
    ("divisors", "text"),
    [
        ([40.0], "equal weights; its divisor is the number of elements of the first cross entropy"),
        ([2.0, 20.0], "equal weights"),
    ],
)
def test_a_loss_that_the_count_of_another_one_divides_states_which(
    divisors: list[float], text: str
) -> None:
    """The second of two masked losses, divided by the sum of the first one's mask."""
    second: dict[str, Any] = {"coefficient": 0.5, "head": 2, "divisors": divisors}
    both = [
        [term(n, 1 / 40, "none", head=1), term(m, 0.5 / 40, "none", **second)]
        for n, m in ((10, 4), (30, 6))
    ]
    assert [v.text for v in verdicts(*both).values()] == ["balanced", text]


@pytest.mark.parametrize(
    ("divisors", "text"),
    [
        ([2.0], "equal weights; its constant is 1/K, or a weight that K does not divide"),
        ([], "balanced"),  # of the main loss: K = 2 is in its constant, too
    ],
)
def test_a_constant_of_one_over_k_beside_a_written_division_may_be_a_weight(
    divisors: list[float], text: str
) -> None:
    """As the commitment loss of a VQ-VAE, if K = 4: its weight is 0.25."""
    main = term(10, 1 / 20, divisors=divisors)
    beside = term(8, 1 / 16, undivided=True, coefficient=0.5, head=2)
    *_, further = verdicts([main, beside], [main, beside]).values()
    assert (further.status, further.text) == ("ok", text)


@pytest.mark.parametrize("windows", [(2, 2), (4, 4), (4, 2)])
def test_a_loss_of_balance_1_is_not_called_normalised_if_its_weight_may_be_one_over_k(
    windows: tuple[int, ...],
) -> None:
    """At K = 4, a weight of 0.25 looks like a division by K; not if it is 0.5 at K = 2."""
    steps = [
        facts(record([[term(10, 1 / (10 * k), undivided=False), router(0.01 / 4)]] * k, number))
        for number, k in enumerate(windows, 1)
    ]
    found = [f for f in judged(steps).findings if "missing" in f.rule]
    assert found[0].title.startswith("The mean is not divided by ")
    several = len(set(windows)) > 1
    assert ("is normalised over the window" in found[0].summary) is several
    assert (f"is divided by K, or its weight is 1/{windows[0]}" in found[0].summary) is not several


@pytest.mark.parametrize(
    ("elements", "more", "words"),
    [
        ((4, 4), {"outer_coefficient": 0.01}, "the mean (of 4 elements, times 0.01) is added"),
        ((4, 7), {}, "the mean is added"),
    ],
)
def test_a_mean_by_hand_is_described_by_what_it_reduces(
    elements: tuple[int, ...], more: dict[str, Any], words: str
) -> None:
    batches = [
        [term(10, 1 / 20, undivided=False), router(0.01 / 4, elements=n, **more)] for n in elements
    ]
    found = [f for f in judged([facts(record(batches))] * 2).findings if "missing" in f.rule]
    assert (
        found[0].title == "The mean is not divided by K = 2" and words in found[0].summary.lower()
    )
