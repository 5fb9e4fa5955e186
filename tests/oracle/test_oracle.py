"""The oracle itself: its truth agrees with closed formulas, and its comparison can fail."""

from __future__ import annotations

import ast
import itertools
import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from helpers.facts import judged
from museum.stage import Stage
from oracle.drawing import draw, parsed
from oracle.expectation import (
    DRIFT,
    MISSING,
    NEVER_SYNCED,
    PARTIAL,
    SYNCED_OFTEN,
    UNEQUAL,
    WORLD,
    Expectation,
    of_arithmetic,
    of_mistakes,
)
from oracle.observing import Columns, Observed
from oracle.outcome import Outcome, outcome
from oracle.program import DIMENSIONS, STEPS, Program
from oracle.report import wilson
from oracle.run import PlayedProgram, outcome_of, play
from oracle.shrinking import shrunk
from oracle.truth import Truth, truth_of
from oracle.writing import script

SIMPLEST = Program(5, **{name: next(iter(weights)) for name, weights in DIMENSIONS.items()})


# For the numbers of tokens of the micro-batches of one rank: the weight of a token in each of them.
NORMALISATIONS: dict[str, Callable[[list[int]], list[float]]] = {
    "window": lambda n: [1 / sum(n)] * len(n),
    "share": lambda n: [1 / sum(n)] * len(n),
    "mean_k": lambda n: [1 / len(n) / each for each in n],
    "never": lambda n: [1 / each for each in n],
    "twice": lambda n: [1 / len(n) ** 2 / each for each in n],
    "sum": lambda n: [1.0] * len(n),
}


@pytest.mark.parametrize("layout", ["one", "ddp"])
@pytest.mark.parametrize("normalisation", NORMALISATIONS)
def test_the_truth_agrees_with_the_formula_of_a_normalisation(
    normalisation: str, layout: str, stage: Stage
) -> None:
    program = replace(SIMPLEST, normalisation=normalisation, layout=layout, data="unequal")
    played = play(stage, program)
    ranks, truth = played.observed, played.truth
    assert truth.replicas_equal
    assert len(truth.true_steps) == STEPS
    for index, step in enumerate(truth.true_steps):
        lines = []  # the tokens of each micro-batch of each rank, and their weight
        for rank in ranks:
            counts = [len(each) for each in _micro_batches(rank.columns[index]["cross_entropy"])]
            weights = NORMALISATIONS[normalisation](counts)
            lines += [(n, w / len(ranks)) for n, w in zip(counts, weights, strict=True)]
        tokens, balance = sum(n for n, _ in lines), sum(n * w for n, w in lines)
        misallocation = sum(abs(n * w / balance - n / tokens) for n, w in lines) / 2
        account = step.accounts["cross_entropy"]
        assert account.tokens == tokens
        assert account.balance == pytest.approx(balance, rel=1e-4)
        assert account.misallocation == pytest.approx(misallocation, abs=1e-4)


def _micro_batches(columns: Columns) -> list[list[int]]:
    indices = columns.micro_batches.tolist()
    return [[*group] for _, group in itertools.groupby(indices)]


@pytest.mark.parametrize(
    "choices",
    [
        "layout:ddp_of_4,ranks_count:all",
        "layout:all_reduce,ranks_count:all",
        "layout:fsdp2,ranks_count:all",
        "layout:hsdp,ranks_count:all",
        "layout:fsdp2_sum,ranks_count:all",
        "layout:fsdp2_every,ranks_count:all",
        "layout:hsdp_deferred,ranks_count:all",
        "layout:tensor",
        "layout:tensor_fsdp2,ranks_count:all",
        "layout:context,ranks_count:all,objective:ignore_index",
        "loop:closure",
        "loop:iterator",
        "optimizers:two",
        "optimizers:adversary",
        "accumulate_in:buffers",
        "skipped:guard,clipping:window",
        "skipped:overflow,precision:scaler",
        "objective:contrastive",
        "objective:ctc",
        "auxiliary:second_head+z_loss",
        "compile:model",
    ],
)
def test_token_weights_are_equal_wherever_a_program_divides_by_all_tokens(
    choices: str, stage: Stage
) -> None:
    program = _simplest("data:unequal," + choices)
    truth = play(stage, program).truth
    assert truth.replicas_equal
    assert truth.steps == truth.windows == STEPS - (program.skipped != "none")
    for step in truth.true_steps:
        for account in step.accounts.values():
            assert account.balance == pytest.approx(1, rel=1e-3)
            assert account.misallocation == pytest.approx(0, abs=1e-3)


def _simplest(choices: str) -> Program:
    return replace(SIMPLEST, **{name: each for name, (each,) in parsed(choices).items()})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("choices", "required"),
    [
        ("loop:off_by_one,normalisation:mean_k,accumulation:3", {PARTIAL}),
        ("loop:epochs,normalisation:mean_k,accumulation:4,data:short_window", {PARTIAL, UNEQUAL}),
        ("layout:all_reduce,all_reduce:sum_only,accumulation:3", {WORLD}),
        ("layout:all_reduce,all_reduce:without_biases", {DRIFT}),
        (
            "layout:all_reduce,all_reduce:early",
            {DRIFT, UNEQUAL, "ddp.wrong_microbatch_synced"},
        ),
        ("layout:all_reduce_of_4,all_reduce:half_of_ranks", {DRIFT, UNEQUAL}),
    ],
)
def test_the_right_answer_follows_from_what_was_applied(
    choices: str, required: set[str], stage: Stage
) -> None:
    program = _simplest(choices)
    assert of_arithmetic(program, play(stage, program).truth).required == required


@pytest.mark.parametrize(
    ("choices", "per_window", "required"),
    [
        ("layout:ddp", 1, set()),
        ("layout:ddp,optimizers:two,skipped:guard,clipping:window", 1, set()),
        ("layout:ddp_of_4,mistake:synced_every_micro_batch", 3, {SYNCED_OFTEN}),
        ("layout:ddp,mistake:never_synced", 0, {NEVER_SYNCED}),
        ("layout:fsdp2", 1, set()),
        ("layout:all_reduce,ranks_count:all", 1, set()),
    ],
)
def test_synchronisations_are_counted(
    choices: str, per_window: int, required: set[str], stage: Stage
) -> None:
    program = _simplest("accumulation:3," + choices)
    truth = play(stage, program).truth
    assert truth.synchronisations == per_window * STEPS
    assert of_mistakes(program, truth).required == required


def test_of_two_mistakes_either_may_be_named(divided: PlayedProgram) -> None:
    program = _simplest("mistake:never_zeroed,second_mistake:stepped_twice")
    missing = Expectation(frozenset({MISSING}), frozenset({MISSING}))
    assert (of_mistakes(program, divided.truth) | missing).required == {
        "loop.grads_not_zeroed",
        "loop.double_step",
        MISSING,
    }


def test_a_mistake_that_a_right_program_with_another_weight_makes_too_is_not_required(
    divided: PlayedProgram,
) -> None:
    truth, squares = divided.truth, "objective:squared_error,mistake:stepped_every_micro_batch"
    assert of_mistakes(_simplest(squares), truth).unknown
    both = of_mistakes(_simplest(squares + ",second_mistake:never_zeroed"), truth)
    assert both.required == {"loop.grads_not_zeroed"} and not both.unknown
    tokens = of_mistakes(_simplest("mistake:stepped_every_micro_batch"), truth)
    assert tokens.required == {"loop.step_every_microbatch"} and not tokens.unknown


def test_ranks_that_divide_by_their_own_count_after_ddp_drift(stage: Stage) -> None:
    program = replace(SIMPLEST, normalisation="after_backward", layout="ddp", data="unequal")
    truth = play(stage, program).truth
    assert not truth.replicas_equal
    assert "ddp.replica_drift" in of_arithmetic(program, truth).required


def test_a_gradient_that_holds_an_earlier_window_has_no_account(stage: Stage) -> None:
    truth = play(stage, replace(SIMPLEST, mistake="never_zeroed")).truth
    assert truth.true_steps[0].accounts
    assert not any(step.accounts for step in truth.true_steps[1:])


def test_a_gradient_that_is_not_finite_has_no_account() -> None:
    columns = Columns(torch.eye(3, dtype=torch.float64), torch.ones(3), torch.zeros(3))
    gradient = torch.tensor([math.nan, 1, 1], dtype=torch.float64)
    observed = Observed(1, [1], [3], 0, [gradient], [{"": columns}])
    (step,) = truth_of(SIMPLEST, [observed]).true_steps
    assert math.isinf(step.residual) and not step.accounts


def test_programs_are_the_same_for_the_same_seed_and_reach_every_choice() -> None:
    programs = list(itertools.islice(draw(3), 1000))
    assert programs == list(itertools.islice(draw(3), 1000))
    for dimension, choices in DIMENSIONS.items():
        for choice in choices.keys() - {program.choices[dimension] for program in programs}:
            assert next(draw(3, f"{dimension}:{choice}")).choices[dimension] == choice


def test_scripts_can_be_parsed_and_do_not_know_gradledger() -> None:
    for program in itertools.islice(draw(4), 300):
        text = script(program)
        ast.parse(text)
        assert "gradledger" not in text


def test_choices_that_do_not_exist_are_refused() -> None:
    with pytest.raises(ValueError, match="no dimension 'layuot'; there are loop, "):
        next(draw(1, "layuot:ddp"))
    with pytest.raises(ValueError, match="layout has no 'dpp', only one, ddp, "):
        next(draw(1, "layout:dpp"))
    with pytest.raises(ValueError, match="no program has layout:one,mistake:never_synced"):
        next(draw(1, "layout:one,mistake:never_synced"))


@pytest.fixture(scope="module")
def divided(stage: Stage) -> PlayedProgram:
    """A program without a mistake."""
    return play(stage, SIMPLEST)


@pytest.fixture(scope="module")
def undivided(stage: Stage) -> PlayedProgram:
    """A program that does not divide by K."""
    return play(stage, replace(SIMPLEST, normalisation="never"))


def test_each_kind_of_answer_is_told_apart(
    divided: PlayedProgram, undivided: PlayedProgram
) -> None:
    def kind(played: PlayedProgram, expected: Expectation) -> str:
        evaluation = judged(played.facts)
        return outcome(SIMPLEST, played.truth, expected, played.facts, evaluation).kind

    missing = of_arithmetic(SIMPLEST, undivided.truth)
    assert missing.required == {MISSING}
    assert of_arithmetic(SIMPLEST, divided.truth).required == frozenset()
    assert kind(divided, Expectation()) == "right"
    assert kind(undivided, missing) == "right"
    assert kind(undivided, Expectation()) == "accused"
    assert kind(undivided, Expectation(frozenset({UNEQUAL}), frozenset({UNEQUAL}))) == "accused"
    assert kind(divided, missing) == "missed"
    assert kind(replace(divided, truth=undivided.truth), Expectation()) == "untrue"
    assert kind(undivided, Expectation(unknown="its intention")) == "either"


def test_another_number_of_synchronisations_is_untrue(stage: Stage) -> None:
    program = _simplest("layout:ddp")
    played = play(stage, program)

    def compared(truth: Truth) -> str:
        return outcome(program, truth, Expectation(), played.facts, judged(played.facts)).why

    assert compared(played.truth) == ""
    more = replace(played.truth, synchronisations=7)
    assert compared(more) == "6 synchronisations, truly 7"


def test_a_failing_program_is_reduced_to_the_choices_that_matter() -> None:
    def run(program: Program) -> Outcome:
        wrong = program.objective == "focal" and program.layout == "ddp"
        return Outcome(program, "missed" if wrong else "right", "", "balanced", ())

    failing = next(p for p in draw(5, "objective:focal,layout:ddp") if p.mistake != "none")
    smallest = shrunk(run(failing), run).program
    differing = {
        name for name, choice in smallest.choices.items() if choice != SIMPLEST.choices[name]
    }
    assert differing == {"objective", "layout"}


def test_intervals_are_those_of_wilson() -> None:
    low, high = wilson(8, 10)  # Brown, Cai and DasGupta 2001, table of intervals
    assert (round(low, 3), round(high, 3)) == (0.490, 0.943)


@pytest.mark.parametrize("choices", ["layout:one", "layout:ddp,objective:cross_entropy"])
def test_simple_programs_get_right_answers(choices: str, stage: Stage) -> None:
    results = [outcome_of(stage, program) for program in itertools.islice(draw(7, choices), 6)]
    wrong = [r for r in results if r.kind not in ("right", "either")]
    assert [(r.kind, r.why, r.program) for r in wrong] == []
