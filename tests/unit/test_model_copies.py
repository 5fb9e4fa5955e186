"""Ranks that step on their own gradients, and then take over the parameters of one of them."""

from __future__ import annotations

from typing import Any

import pytest

from gradledger.records import Replica, Samples, StepRecord
from gradledger_monitor.model.findings import EvaluationResult, Finding
from gradledger_monitor.model.ranks.mixtures import copied_from
from gradledger_monitor.model.step_facts import StepFacts
from helpers.facts import facts, judged, record, term

RULE = "ddp.never_synced"
OWN = [[1.0, -2.0, 0.5, 3.0], [3.0, 1.0, -0.25, 1.0], [2.0, -1.0, 0.25, 2.0]]
OF_RANK_0 = [Samples(OWN[1], OWN[0]), Samples(OWN[2], OWN[0])]
PARTS = [OWN[0][:2] + OWN[1][2:]] * 2  # the first half of rank 0, the second of rank 1


def rank(number: int, index: int, models: Samples | None, **more: Any) -> StepRecord:
    replica = Replica(1, [0], [float(number)], [[4]])
    fields: dict[str, Any] = {"norm": 1.0 + index, "models": models, "replica": replica, **more}
    return record([term(10, 1 / 10)], number, **fields)


def step(number: int, models: list[Samples | None], **more: Any) -> StepFacts:
    """Values in tuples are by rank."""
    own = [
        {k: v[r] if isinstance(v, tuple) else v for k, v in more.items()}
        for r in range(len(models))
    ]
    return facts(*(rank(number, r, m, **own[r]) for r, m in enumerate(models)))


def copies(windows: int, ranks: int = 2, **more: Any) -> EvaluationResult:
    """The ranks after the first take over the model of the first, from the second step on."""
    taken: list[Samples | None] = [None, *OF_RANK_0[: ranks - 1]]
    steps = [step(1, [None] * ranks), *(step(n, taken, **more) for n in range(2, windows + 2))]
    return judged(steps)


def finding(evaluation: EvaluationResult) -> Finding | None:
    return next((f for f in evaluation.findings if f.rule == RULE), None)


@pytest.mark.parametrize("ranks", [2, 3])
def test_copies_of_one_model_after_each_step_lose_what_the_other_ranks_computed(ranks: int) -> None:
    reported = finding(copies(5, ranks))
    assert reported is not None and reported.severity == "error"
    assert (reported.evidence["sources"], reported.evidence["windows"]) == ([0], 5)
    others = "rank 1" if ranks == 2 else "ranks 1, 2"
    assert f"{others} took over the parameters of rank 0" in reported.summary
    assert "trained on the data of rank 0 alone" in reported.summary
    assert finding(copies(4, ranks)) is None


@pytest.mark.parametrize(
    "more",
    [
        {"norm": 1.0},  # the ranks have the same gradients
        {"lr": (0.1, 0.2)},  # each tries its rate, and all take over the best model
        {"post_factor": (None, 1.0)},  # rank 0 may step on what all ranks sent to it
        {"missing": {"sync": "in its step"}},
        {"replica": (Replica(1, [0], [1.0], [[4]]), Replica(1, [0], [2.0], [[4]]))},
    ],
)
def test_what_may_be_intended_or_combined_is_not_reported(more: dict[str, Any]) -> None:
    assert finding(copies(8, **more)) is None


def test_another_rank_at_each_time_may_be_the_best_one() -> None:
    first: list[Samples | None] = [None, Samples(OWN[1], OWN[0])]
    second: list[Samples | None] = [Samples(OWN[0], OWN[1]), None]
    steps = [step(n, (first, second)[n % 2]) for n in range(2, 12)]
    assert finding(judged(steps)) is None


def test_later_steps_whose_parameters_are_not_compared_continue_a_series() -> None:
    taken: list[Samples | None] = [None, OF_RANK_0[0]]
    steps = [step(n, taken, replica=None if n > 4 else Replica(1, [0], [1.0])) for n in range(2, 9)]
    reported = finding(judged(steps))
    assert reported is not None and reported.last_step == 8
    assert finding(judged([step(n, taken, replica=None) for n in range(2, 9)])) is None


def test_each_parameter_may_come_from_the_rank_that_steps_for_it() -> None:
    """As of Muon or ZeRO by hand, where nothing reduces the gradients."""
    taken = [Samples(own, part) for own, part in zip(OWN, PARTS, strict=False)]
    reported = finding(judged([step(n, list(taken)) for n in range(2, 7)]))
    assert reported is not None and reported.evidence["sources"] == [0, 1]
    assert "each parameter from one of them (ranks 0, 1)" in reported.summary


def test_an_average_is_no_copy() -> None:
    mean = [sum(column) / 2 for column in zip(*OWN[:2], strict=True)]
    assert copied_from(OWN[:2], PARTS) == (0, 1)
    assert copied_from(OWN[:2], [OWN[1]] * 2) == (1,)
    assert copied_from(OWN[:2], [mean] * 2) == ()
    assert copied_from(OWN[:2], OWN[:2]) == ()
    assert copied_from([OWN[0]] * 2, [OWN[0]] * 2) == ()
