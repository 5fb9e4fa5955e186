"""Which parameters differ between ranks that combine gradients by hand, and what that proves."""

from __future__ import annotations

from typing import Any

import pytest

from gradledger.observers.parameter_updates import ALL_UNTIL, replica_indices
from gradledger.records import Layers, LeftOpen, Replica, Samples, StepRecord
from gradledger_monitor.model.findings import EvaluationResult, Finding
from gradledger_monitor.model.ranks.topology import NORMALISED
from gradledger_monitor.model.step_facts import StepFacts
from gradledger_monitor.rules.ddp.drift_texts import left_out, outside
from gradledger_monitor.rules.ddp.model_averages import AT_THE_END, MAYBE_AT_THE_END, ModelAverages
from gradledger_monitor.rules.ddp.replicas import Replicas
from gradledger_monitor.rules.ddp.trained_apart import (
    ALONE,
    ALONE_AND_COMMUNICATES,
    CHANGED,
    NO_LONGER,
    OF_ALL_TOKENS,
    SHARED_OUT,
)
from helpers.facts import accepted, facts, judged, record, term

DRIFT = "ddp.replica_drift"
OWN = ([1.0, -2.0, 0.5, 3.0], [3.0, 1.0, -0.25, 1.0])
MEAN = [2.0, -0.5, 0.125, 2.0]


def one_rank(number: int, rank: int, prints: list[float], **more: Any) -> StepRecord:
    """A rank that averages its gradients with the other by hand."""
    fields: dict[str, Any] = {
        "post_factor": None,
        "sync": "unknown",
        "collectives_after": 4,
        "samples": Samples(OWN[rank], MEAN),
        "parameters": sum(prints),
        **more,
    }
    replica = Replica(len(prints), list(range(len(prints))), prints, [[4]] * len(prints))
    made = record([term(10, 1 / 10)], number, replica=replica, **fields)
    made.micro_batches[0].loss, made.micro_batches[0].collectives = 1.0 + rank, 0
    return made


def run(*steps: tuple[list[float], list[float]], **more: Any) -> EvaluationResult:
    """Steps of two ranks with these fingerprints; values in tuples are by rank."""
    made = []
    for number, prints in enumerate(steps, 1):
        own = [{k: v[r] if isinstance(v, tuple) else v for k, v in more.items()} for r in (0, 1)]
        made.append(facts(*(one_rank(number, r, prints[r], **own[r]) for r in (0, 1))))
    return judged(made)


def finding(evaluation: EvaluationResult) -> Finding | None:
    return next((f for f in evaluation.findings if f.rule == DRIFT), None)


EQUAL = ([1.0, 2.0, 3.0], [1.0, 2.0, 3.0])
SECOND = ([1.1, 2.1, 3.1], [1.1, 2.2, 3.1])
ALL = ([1.1, 2.1, 3.1], [1.2, 2.2, 3.2])


def test_replicas_that_stay_equal_are_in_order() -> None:
    assert run(EQUAL, EQUAL).coverage[DRIFT] == "ok"


def test_a_parameter_that_differs_after_a_step_is_left_out_of_the_all_reduce() -> None:
    found = finding(run(EQUAL, SECOND, norm=(1.0, 1.1)))
    assert found is not None and found.first_step == 2
    assert found.title == "1 parameter is left out of the all-reduce"
    assert (
        "1 of 3 parameters differs" in found.summary
        and "was equal at first: parameter 1 [4]." in found.summary
    )


def test_the_names_of_parameters_are_those_of_the_first_measurement() -> None:
    replicas = Replicas()
    for names in (["embed.weight", "head.weight", "head.bias"], []):
        ranks = [Replica(3, [0, 1, 2], values, [[4]] * 3, names) for values in EQUAL]
        replicas.add(facts(*(record([term(10, 0.1)], replica=replica) for replica in ranks)))
    assert replicas.listed({1: [4], 7: [2, 3]}) == ["head.weight [4]", "parameter 7 [2, 3]"]


def test_the_fix_of_one_that_is_left_out_spares_parameters_that_differed_at_first() -> None:
    """They may be the shards of tensor parallelism, which no all-reduce may mix."""
    for shard_differs in (True, False):
        replicas = Replicas()
        replicas.total, replicas.apart = 3, {1: [4], 2: [4]}
        replicas.differed_at_first = {0: False, 1: False, 2: shard_differs}
        fix = left_out(replicas, all_drift=False).fix
        every = "for parameter in model.parameters():"
        assert (every in fix) is not shard_differs


@pytest.mark.parametrize(
    ("names", "apart", "severity", "text"),
    [
        (("body.weight", "body.bias", "head.weight", "head.bias"), (2, 3), "warning", "is meant"),
        (("0.weight", "0.bias", "1.weight", "1.bias"), (2, 3), "warning", "is meant"),
        (("body.weight", "body.bias", "head.weight", "head.bias"), (3,), "error", "same module"),
        (("0.weight", "1.weight", "2.weight", "head.weight"), (1,), "error", "between them"),
        (("0.weight", "1.weight", "2.weight", "head.weight"), (2,), "warning", "is meant"),
        ((), (2, 3), "warning", "is meant"),
        (("0.weight", "0.bias", "1.weight", "1.bias"), (1, 3), "warning", "is meant"),
        (("0.bias", "1.weight", "1.bias", "2.bias"), (1, 2), "warning", "is meant"),
    ],
)
def test_a_whole_part_that_is_left_out_may_be_that_of_each_rank(
    names: tuple[str, ...], apart: tuple[int, ...], severity: str, text: str
) -> None:
    """A personal head; not the bias of a combined weight, or one of several equal layers."""
    replicas = Replicas()
    for step in (1.0, 2.0):
        values = [[step + rank * (step - 1) * (i in apart) for i in range(4)] for rank in (0, 1)]
        ranks = [Replica(4, [*range(4)], v, [[4, 4]] * 4, [*names]) for v in values]
        replicas.add(facts(*(record([term(10, 0.1)], replica=replica) for replica in ranks)))
    stated = left_out(replicas, all_drift=False)
    assert (stated.severity, text in stated.summary) == (severity, True)


@pytest.mark.parametrize(
    ("names", "apart_at", "severity", "text"),
    [
        (("body.weight", "body.bias", "head.weight", "head.bias"), 2, "warning", "personal head"),
        (("head.weight", "body.weight", "body.bias", "head.bias"), 2, "error", "The ranks combine"),
        (("body.weight", "body.bias", "head.weight", "head.bias"), 1, "info", "from the start"),
    ],
)
def test_a_whole_part_outside_ddp_may_be_that_of_each_rank(
    names: tuple[str, ...], apart_at: int, severity: str, text: str
) -> None:
    """So may a part that differed from the start; not one parameter of a combined module."""
    replicas = Replicas()
    apart = (3,) if severity == "error" else (2, 3)
    for step in (1.0, 2.0):
        differs = step >= apart_at
        values = [[step + rank * differs * (i in apart) for i in range(4)] for rank in (0, 1)]
        ranks = [Replica(4, [*range(4)], v, [[4, 4]] * 4, [*names]) for v in values]
        replicas.add(facts(*(record([term(10, 0.1)], replica=replica) for replica in ranks)))
    stated = outside(len(apart), replicas, "fix")
    assert (stated.severity, text in stated.summary) == (severity, True)


def test_where_all_parameters_differ_nothing_shows_that_some_were_left_out() -> None:
    """A step before an asynchronous all-reduce has ended does the same."""
    found = finding(run(EQUAL, ALL, norm=(1.0, 1.1)))
    assert found is not None and "yet step on different ones" in found.title
    assert "asynchronous all-reduce" in found.summary


def test_where_as_many_numbers_were_sent_as_gradients_none_is_left_out() -> None:
    replicas = Replicas()
    replicas.total, replicas.apart, replicas.differed_at_first = 3, {1: [4]}, {1: False}
    title, summary, fix, severity = left_out(replicas, all_drift=False, all_sent=True)
    assert severity == "error"
    assert "Left out" not in title and "leaves out" not in summary
    assert "does not wait" in summary and "work.wait()" in fix


def test_optimizers_of_other_parameters_each_are_not_measured_where_nothing_is_combined() -> None:
    """Each rank may own a part of the model and share it out: then its gradients are its own."""
    parts = [Replica(1, [0], [1.0], [[4]], [name]) for name in ("body.weight", "head.weight")]
    apart = facts(*(record([term(10, 0.1)], replica=part) for part in parts))
    coverage = judged([apart]).coverage
    assert coverage[DRIFT].startswith("not_measured: the optimizers of the ranks hold different")
    alike = facts(*(record([term(10, 0.1)], replica=parts[0]) for _ in parts))
    assert not judged([alike]).coverage[DRIFT].startswith("not_measured")


def test_optimizers_of_other_parameters_each_have_other_norms_under_ddp() -> None:
    """ZeRO by hand: DDP averages all gradients, and each rank steps on a part of them."""
    names = ("body.weight", "head.weight")
    ranks = []
    for number, name in enumerate(names, 1):
        replica = Replica(1, [0], [float(number)], [[4]], [name])
        fields: dict[str, Any] = {"sync": "averaged", "wrapper": "ddp", "norm": float(number)}
        made = record([term(10, 1 / 10)], replica=replica, parameters=float(number), **fields)
        made.micro_batches[0].wrapper, made.micro_batches[0].collectives = "sync", 1
        ranks.append(made)
    evaluation = judged([facts(*ranks)])
    assert finding(evaluation) is None
    assert evaluation.coverage[DRIFT] == f"not_measured: {SHARED_OUT}"


def test_equal_norms_prove_no_omission_only_that_the_replicas_differ() -> None:
    found = finding(run(EQUAL, SECOND))
    assert found is not None and found.title == "The replicas differ between the ranks"


def test_replicas_that_start_different_are_named_at_the_first_step() -> None:
    found = finding(run(ALL, ALL))
    assert found is not None and found.first_step == 1
    assert found.title == "The replicas start from different weights"


def test_parameters_that_differ_from_the_start_and_were_not_sampled_are_no_finding() -> None:
    evaluation = run(SECOND, SECOND, parameters=6.0)  # such as experts, one set for each rank
    assert finding(evaluation) is None
    assert evaluation.coverage[DRIFT].startswith("not_measured: some parameters differ")


@pytest.mark.parametrize(
    ("gradients", "named"),
    [
        (([0.1, 0.2, 0.3], [0.1, 0.2, 0.3]), True),  # one of many, drawn anew on each rank
        (([0.1, 0.2, 0.3], [0.1, 0.4, 0.3]), False),  # an expert of each rank
        (([0.1, None, 0.3], [0.1, None, 0.3]), False),  # the model does not use it
    ],
)
def test_parameters_that_start_different_matter_where_their_gradients_are_combined(
    gradients: tuple[list[float | None], ...], named: bool
) -> None:
    names = ["body", "neck", "head"]
    steps = []
    for number in (1, 2):
        ranks = [one_rank(number, r, SECOND[r]) for r in (0, 1)]
        for each, of_rank in zip(ranks, gradients, strict=True):
            assert each.replica is not None
            each.replica.names = names
            each.layers = Layers(parameters=3, names=names, gradient=of_rank)
        steps.append(facts(*ranks))
    evaluation = judged(steps)
    found = finding(evaluation)
    assert (found is not None) is named
    if found is not None:
        assert found.title == "The replicas start from different weights"
        assert "1 of 3 parameters differs" in found.summary
    else:
        assert evaluation.coverage[DRIFT].startswith("not_measured: some parameters differ")


def test_parameters_that_become_equal_again_are_averaged_on_purpose() -> None:
    evaluation = run(EQUAL, EQUAL, ALL, EQUAL, ALL, samples=None)
    assert finding(evaluation) is None
    evaluation = run(EQUAL, SECOND, EQUAL, SECOND)
    found = finding(evaluation)
    assert found is not None and found.last_step == 2


@pytest.mark.parametrize("sign", ["collectives", "no loss", "same loss"])
def test_ranks_that_may_hold_parts_of_a_model_are_left_alone(sign: str) -> None:
    steps = []
    for number, prints in enumerate((EQUAL, SECOND), 1):
        ranks = [one_rank(number, r, prints[r], norm=1.0 + r) for r in (0, 1)]
        for each in ranks:
            batch = each.micro_batches[0]
            if sign == "collectives":
                batch.collectives = 2
            elif sign == "no loss" and each is ranks[0]:
                batch.terms = []
            elif sign == "same loss":
                batch.loss = 1.0
        steps.append(facts(*ranks))
    assert finding(judged(steps)) is None


LEFT_AT = ([1.0, 2.0, 3.0, 4.0], [1.5, 2.5, 3.5, 4.5])  # parameters as a step left them, by rank
AVERAGE = [1.25, 2.25, 3.25, 4.25]


def local_sgd(
    now: tuple[list[float], list[float]], *prints: tuple[list[float], list[float]]
) -> str:
    """Ranks that combine no gradients; before each step but the first, something changes their
    parameters.
    """
    alone: dict[str, Any] = {"samples": None, "sync": "none", "collectives_after": 0}
    steps = []
    for number, each in enumerate(prints, 1):
        models = [Samples(LEFT_AT[r], now[r]) if number > 1 else None for r in (0, 1)]
        more = {**alone, "post_factor": 1.0, "averaging": number > 1}
        steps.append(
            facts(*(one_rank(number, r, each[r], **more, models=models[r]) for r in (0, 1)))
        )
    return judged(steps).coverage[DRIFT]


def test_ranks_whose_parameters_become_equal_average_their_models() -> None:
    equal = "ok: the ranks average their parameters from time to time"
    assert local_sgd((AVERAGE, AVERAGE), EQUAL, ALL) == equal


def test_a_limit_on_the_weights_is_no_average() -> None:
    projected = ([0.5, 1.0, 1.5, 2.0], [0.6, 1.1, 1.6, 2.1])
    clamped = ([1.0] * 4, [1.0, 1.0, -1.0, 1.0])
    for now in (projected, clamped):
        assert local_sgd(now, EQUAL, ALL) == f"not_measured: {CHANGED}"


def test_an_average_that_leaves_out_a_parameter_is_not_called_one() -> None:
    """The first and the last are equal again, and the second is not."""
    partly = ([1.3, 2.3, 3.3], [1.3, 2.4, 3.3])
    assert local_sgd((AVERAGE, AVERAGE), ALL, partly) == (
        "not_measured: the ranks average their parameters, and 1 of 3 parameters differs "
        "afterwards: whether each rank is meant to keep its own is not known"
    )
    assert local_sgd((AVERAGE, AVERAGE), ALL, partly, EQUAL).startswith("ok")  # later, it is


def test_ranks_that_combine_nothing_may_differ() -> None:
    evaluation = run(EQUAL, ALL, samples=None, sync="none", collectives_after=0, post_factor=1.0)
    assert evaluation.coverage[DRIFT] == f"not_measured: {ALONE}"  # they were equal at first


def test_the_reason_of_the_last_step_is_that_of_the_most_that_is_known() -> None:
    """Elastic averaging, from the second step on; before it, nothing changes the parameters."""
    alone: dict[str, Any] = {"samples": None, "sync": "none", "post_factor": 1.0}
    steps = []
    for number, prints in ((1, EQUAL), (2, ALL), (3, ALL)):
        ranks = [one_rank(number, r, prints[r], **alone, collectives_after=0) for r in (0, 1)]
        for sent, own in zip(ranks, OWN, strict=True):
            limited = [0.5 * value for value in own]
            sent.models = Samples(list(own), limited) if number == 3 else None
        steps.append(facts(*ranks))
    assert judged(steps[:2]).coverage[DRIFT] == f"not_measured: {ALONE}"
    assert judged(steps).coverage[DRIFT] == f"not_measured: {CHANGED}"


@pytest.mark.parametrize(
    ("collectives", "expected"),
    [
        (4, f"not_measured: {ALONE_AND_COMMUNICATES}"),  # of copies, or of a norm of each layer
        (1, f"not_measured: {ALONE_AND_COMMUNICATES}"),  # of one flat copy, or of a loss
        (0, f"not_measured: {ALONE}"),
    ],
)
def test_ranks_that_communicate_as_often_as_for_each_gradient_may_train_models_of_their_own(
    collectives: int, expected: str
) -> None:
    more = {"samples": None, "sync": "none", "post_factor": 1.0}
    evaluation = run(EQUAL, *[ALL] * 30, collectives_after=collectives, **more)
    assert evaluation.coverage[DRIFT] == expected
    assert finding(evaluation) is None


def copies(*shares: float | None, **more: Any) -> EvaluationResult:
    """Windows whose ranks step on their own gradients, and all-reduce so much before it."""
    alone: dict[str, Any] = {"samples": None, "sync": "none", "post_factor": 1.0, **more}
    steps = []
    for number, share in enumerate(shares, 1):
        prints = EQUAL if number == 1 else ALL
        ranks = (one_rank(number, r, prints[r], reduced_share=share, **alone) for r in (0, 1))
        steps.append(facts(*ranks))
    return judged(steps)


def test_copies_of_all_gradients_that_nothing_uses_are_named() -> None:
    found = finding(copies(*[1.001] * 20))  # and the loss
    assert found is not None and (found.severity, found.first_step) == ("warning", 20)
    assert "20 windows" in found.summary and "3 of 3 parameters differ" in found.summary


@pytest.mark.parametrize("arrived", ["none", "some", "all"])
def test_a_step_that_does_not_wait_for_its_all_reduce_is_named(arrived: str) -> None:
    """By the time of the step, the sum may have arrived on no rank, on one, or on both."""
    at_step = {"none": OWN, "some": (MEAN, OWN[1]), "all": (MEAN, MEAN)}[arrived]
    steps = []
    for number, prints in ((1, EQUAL), (2, ALL)):
        ranks = [one_rank(number, r, prints[r], unwaited_share=1.0) for r in (0, 1)]
        for each, own, applied in zip(ranks, OWN, at_step, strict=True):
            each.samples = Samples(own, applied)
        steps.append(facts(*ranks))
    assert finding(judged(steps[:1])) is None
    found = finding(judged(steps))
    assert found is not None and found.title == "The step does not wait for the all-reduce"
    assert "all-reduce of 100% of its gradients" in found.summary and "work.wait()" in found.fix


def test_copies_were_for_a_log_if_the_ranks_average_their_models_later() -> None:
    models = [Samples(own, MEAN) for own in OWN]
    steps = []
    for number in range(1, 26):
        prints = (EQUAL if number == 1 else ALL) if number < 24 else EQUAL
        alone: dict[str, Any] = {"samples": None, "sync": "none", "post_factor": 1.0}
        ranks = [one_rank(number, r, prints[r], reduced_share=1.0, **alone) for r in (0, 1)]
        if number == 24:
            ranks[0].models, ranks[1].models = models
        steps.append(facts(*ranks))
    assert finding(judged(steps[:23])) is not None
    evaluation = judged(steps)
    assert finding(evaluation) is None
    assert evaluation.coverage[DRIFT].startswith("ok")


@pytest.mark.parametrize(
    ("shares", "more", "reason"),
    [
        ([1.0] * 19, {}, ALONE_AND_COMMUNICATES),  # local SGD averages its models as seldom
        ([0.01] * 29, {}, ALONE_AND_COMMUNICATES),  # a loss for a log
        ([1.28] * 29, {}, ALONE_AND_COMMUNICATES),  # predictions of an ensemble
        ([*[1.0] * 19, None, *[1.0] * 19], {}, ALONE_AND_COMMUNICATES),
        ([1.0] * 9, {"models": Samples([1.0, 2.0], [1.1, 2.1])}, CHANGED),  # elastic averaging
    ],
)
def test_what_may_be_for_a_log_or_of_the_parameters_is_no_copy_of_gradients(
    shares: list[float | None], more: dict[str, Any], reason: str
) -> None:
    evaluation = copies(*shares, **more)
    assert finding(evaluation) is None
    assert evaluation.coverage[DRIFT] == f"not_measured: {reason}"


@pytest.mark.parametrize(
    ("counts", "divisor", "named"),
    [
        ((10, 30), 40, True),  # the tokens of all ranks
        ((10, 30), 20, True),  # their mean: DDP would average
        ((10, 30), 35, False),
        ((20, 20), 40, False),  # a factor of the ranks shows nothing alone
    ],
)
def test_a_loss_over_the_tokens_of_all_ranks_may_be_that_of_local_sgd(
    counts: tuple[int, int], divisor: int, named: bool
) -> None:
    alone: dict[str, Any] = {"samples": None, "sync": "none", "post_factor": 1.0}
    steps = []
    for number in range(1, 6):
        prints = EQUAL if number == 1 else ALL
        sent = [one_rank(number, r, prints[r], **alone) for r in (0, 1)]
        for each, tokens in zip(sent, counts, strict=True):
            each.micro_batches[0].terms = [term(tokens, 1 / divisor, "sum")]
        steps.append(facts(*sent))
    assert (steps[-1].factor_unmeasured == NORMALISED) is named
    evaluation = judged(steps)
    assert finding(evaluation) is None  # local SGD may average its models later
    assert (evaluation.coverage[DRIFT] == f"not_measured: {OF_ALL_TOKENS}") is named


def test_replicas_that_drift_once_gradients_are_not_combined_any_more_are_in_doubt() -> None:
    """What earlier steps showed does not hold for later ones; an average of the models does."""
    steps = [facts(*(one_rank(1, r, EQUAL[r]) for r in (0, 1)))]
    alone: dict[str, Any] = {"samples": None, "sync": "none", "post_factor": 1.0}
    for number, prints in ((2, EQUAL), *((number, ALL) for number in range(3, 30))):
        ranks = (one_rank(number, r, prints[r], reduced_share=1.0, **alone) for r in (0, 1))
        steps.append(facts(*ranks))  # local SGD with a log of the mean gradient
    assert judged(steps[:2]).coverage[DRIFT] == "ok"
    evaluation = judged(steps)
    assert evaluation.coverage[DRIFT] == f"not_measured: {NO_LONGER}"
    assert evaluation.verdict == "incomplete"
    averaged = [Samples(LEFT_AT[r], AVERAGE) for r in (0, 1)]
    more = [{**alone, "models": averaged[r], "averaging": True} for r in (0, 1)]
    steps.append(facts(*(one_rank(30, r, EQUAL[r], **more[r]) for r in (0, 1))))
    assert judged(steps).coverage[DRIFT].startswith("ok")


@pytest.mark.parametrize("left_out", [True, False])
def test_an_average_of_some_parameters_under_ddp_is_not_measured(left_out: bool) -> None:
    steps = []
    again = SECOND if left_out else EQUAL
    for number, prints in enumerate((EQUAL, ALL, again), 1):
        local: dict[str, Any] = {"samples": None, "sync": "none", "collectives_after": 0}
        ranks = [
            one_rank(number, r, prints[r], norm=1.0 + r, wrapper="ddp", **local) for r in (0, 1)
        ]
        for each, own in zip(ranks, OWN, strict=True):
            each.micro_batches[0].wrapper = "no_sync"
            each.models = Samples(own, MEAN) if number == 3 else None
        steps.append(facts(*ranks))
    assert finding(judged(steps[:2])) is not None
    evaluation = judged(steps)
    assert finding(evaluation) is None
    assert ("1 of 3 parameters differs" in evaluation.coverage[DRIFT]) is left_out


def local_steps(exchanges: dict[int, dict[int, Samples]]) -> list[StepFacts]:
    """Steps under ``no_sync()``. ``exchanges``: by step, then by rank, the models that changed."""
    steps = []
    for number in range(1, max(exchanges) + 1):
        ranks = []
        for rank in range(4):
            local: dict[str, Any] = {"samples": None, "sync": "none", "collectives_after": 0}
            prints = (EQUAL if number == 1 else ALL)[rank % 2]
            each = one_rank(number, rank % 2, prints, norm=1.0 + rank, wrapper="ddp", **local)
            each.micro_batches[0].wrapper = "no_sync"
            each.models = exchanges.get(number, {}).get(rank)
            ranks.append(each)
        steps.append(facts(*ranks))
    return steps


def drawn_to(centre: list[float]) -> dict[int, Samples]:
    rows = {r: [v + 0.01 * r for v in OWN[0]] for r in range(4)}
    near = {
        r: [0.8 * v + 0.2 * c for v, c in zip(row, centre, strict=True)] for r, row in rows.items()
    }
    return {r: Samples(row, near[r]) for r, row in rows.items()}


def fragment(number: int) -> dict[int, Samples]:
    """Three of six values become one on all ranks, in turns: neither the mean nor a copy."""
    rows = {r: [v + 0.01 * r + 0.1 * number for v in OWN[0][:3] * 2] for r in range(4)}
    new = [0.9 * v - 0.05 for v in rows[0]]
    same = slice(0, 3) if number % 2 else slice(3, 6)
    after = {r: list(new) for r in rows}
    for rank, row in rows.items():
        after[rank][same] = row[same]
    return {rank: Samples(row, after[rank]) for rank, row in rows.items()}


ONE_PAIR = {0: Samples(OWN[0], MEAN), 1: Samples(OWN[1], MEAN)}
CENTRES = ([0.5, 1.5, -0.5, 2.5], [0.6, 1.3, -0.4, 2.7])


def test_what_one_rank_has_changed_alone_may_go_round_in_gossip() -> None:
    """Three of six values are equal on all ranks then; the others are multiples of averages."""
    rows = [[v + 0.01 * r for v in OWN[0][:3] * 2] for r in range(4)]
    after = [rows[0][:3] + [1.05 * v for v in row[3:]] for row in rows]
    samples = {r: Samples(row, after[r]) for r, row in enumerate(rows)}
    averages = ModelAverages()
    averages.add(local_steps({3: samples})[-1])
    assert not averages.mixes
    averages.add(local_steps({3: fragment(3)})[-1])
    assert averages.equal


@pytest.mark.parametrize(
    ("exchanges", "withdrawn"),
    [
        ({3: ONE_PAIR}, True),
        ({3: {0: Samples(OWN[0], MEAN)}}, False),  # a rank that changes its model alone
        ({3: drawn_to(CENTRES[0]), 5: drawn_to(CENTRES[1])}, True),  # elastic averaging
        ({3: drawn_to(CENTRES[0]), 5: drawn_to(CENTRES[0])}, False),  # a decay to the start
        ({3: drawn_to(CENTRES[0])}, False),
        ({n: fragment(n) for n in (3, 4, 5, 6)}, True),  # outer steps, as in streaming DiLoCo
        ({n: fragment(n) for n in (3, 4)}, False),  # each fragment once
    ],
)
def test_exchanges_of_models_withdraw_that_nothing_is_synchronised(
    exchanges: dict[int, dict[int, Samples]], withdrawn: bool
) -> None:
    evaluation = judged(local_steps(exchanges))
    assert ("ddp.never_synced" not in {f.rule for f in evaluation.findings}) is withdrawn


@pytest.mark.parametrize(
    ("models", "withdrawn"),
    [
        ((MEAN, MEAN), True),
        ((OWN[0], OWN[0]), False),  # rank 0 sends its model to the other
        (([0.5 * v for v in OWN[0]], [0.5 * v for v in OWN[1]]), False),  # each loads its own
    ],
)
@pytest.mark.parametrize("wrapper", ["ddp", None])
def test_models_may_be_averaged_after_the_last_step(
    models: tuple[list[float], list[float]], withdrawn: bool, wrapper: str | None
) -> None:
    """Local SGD of fewer steps than its period."""
    fields: dict[str, Any] = {"wrapper": wrapper, "sync": "none", "samples": None}
    steps, prints = [], (EQUAL, ALL, ALL)
    for number, each in enumerate(prints, 1):
        ranks = [one_rank(number, r, each[r], norm=1.0 + r, **fields) for r in (0, 1)]
        for sent in ranks:
            sent.micro_batches[0].wrapper = "no_sync" if wrapper else None
            sent.collectives_after = 0
        steps.append(facts(*ranks))
    before = judged(steps)
    last = [record([], 4, skipped=True, post_factor=None, left_open=LeftOpen()) for _ in "ab"]
    for sent, own, now in zip(last, OWN, models, strict=True):
        sent.models = Samples(own, now)
        sent.missing = {"collectives": "no step was taken"}
    after = judged([*steps, facts(*last)])
    rule = "ddp.never_synced" if wrapper else DRIFT
    assert (rule in {f.rule for f in before.findings}) is bool(wrapper)
    if wrapper:
        assert (rule not in {f.rule for f in after.findings}) is withdrawn
    assert after.coverage[rule] == (f"ok: {AT_THE_END}" if withdrawn else before.coverage[rule])


OF_FOUR = (*OWN, [2.0, 2.0, 1.0, -1.0], [-1.0, 3.0, 0.5, 2.0])
OF_GROUP = (MEAN, [0.5, 2.5, 0.75, 0.5])
MODELS = ([2.0, -0.5, 0.125, 2.0], [4.0, 1.5, 0.25, 6.0])
OF_ALL = [3.0, 0.5, 0.1875, 4.0]


@pytest.mark.parametrize("step", [4, 400])
@pytest.mark.parametrize("equal", [True, False])
def test_equal_models_after_steps_that_are_not_sampled_may_be_an_average(
    equal: bool, step: int
) -> None:
    """Local SGD whose first average is among the last steps."""
    steps, now = local_steps({3: {}}), [3.0, 1.7, -0.4, 2.2]
    last = [record([], step, skipped=True, post_factor=None, left_open=LeftOpen()) for _ in OF_FOUR]
    for rank, (sent, own) in enumerate(zip(last, OF_FOUR, strict=True)):
        sent.models = Samples(own, now if equal else [(rank + 1.0) * v for v in now])
        sent.missing = {"collectives": "no step was taken"}
    evaluation = judged([*steps, facts(*last)])
    unknown, rule = equal and step == 400, "ddp.never_synced"
    assert (rule not in {f.rule for f in evaluation.findings}) is unknown
    if unknown:
        assert evaluation.coverage[rule] == f"not_measured: {MAYBE_AT_THE_END}"


@pytest.mark.parametrize("averaged", [True, False])
def test_groups_that_average_their_models_later_have_no_finding(averaged: bool) -> None:
    """Hierarchical local SGD: pairs of ranks combine gradients, and all ranks their models."""
    steps = []
    for number in range(1, 9):
        ranks = []
        for rank in range(4):
            group = rank // 2
            equal = number == 1 or (number == 8 and averaged)
            own: dict[str, Any] = {"samples": Samples(OF_FOUR[rank], OF_GROUP[group])}
            prints = EQUAL[0] if equal else ALL[group]
            each = one_rank(number, rank % 2, prints, norm=1.0 + group, **own)
            each.models = Samples(MODELS[group], OF_ALL) if averaged and number == 8 else None
            ranks.append(each)
        steps.append(facts(*ranks))
    grouped = finding(judged(steps[:7]))
    assert grouped is not None and "2 groups of ranks" in grouped.title
    assert (finding(judged(steps)) is None) is averaged


def test_ranks_with_other_parameters_are_not_compared() -> None:
    ranks = [one_rank(1, 0, [1.0, 2.0]), one_rank(1, 1, [3.0])]
    assert finding(judged([facts(*ranks)])) is None


def test_every_parameter_is_measured_early_and_each_in_turn_later() -> None:
    assert replica_indices(1, 3) == replica_indices(ALL_UNTIL, 3) == [0, 1, 2]
    later = [set(replica_indices(step, 40)) for step in (11, 21, 31)]
    assert set.union(*later) == set(range(40))
    assert len(replica_indices(1, 5_000)) == len(set(replica_indices(1, 5_000))) == 1_024
    assert replica_indices(11, 2) == [0, 1]
    assert replica_indices(1, 0) == replica_indices(11, 0) == []


def stage_step(number: int, embedding: list[float], head: list[float], **of_head: Any) -> StepFacts:
    """Two stages of a pipeline, with an embedding first and a head last."""
    ranks = [record([[]], number), record([term(10, 1 / 10)], number)]
    ranks[0].micro_batches[0].relayed = True
    shapes = [[24, 16], [16], [16, 16]]
    ranks[0].replica = Replica(3, [0, 1, 2], embedding, shapes)
    ranks[1].replica = Replica(3, [0, 1, 2], head, of_head.get("shapes", shapes[::-1]))
    return facts(*ranks)


@pytest.mark.parametrize(
    ("first", "later", "named"),
    [
        (([5.0, 0.0, 1.0], [2.0, 0.0, 5.0]), ([5.1, 0.1, 1.1], [2.1, 0.2, 5.2]), True),
        (([5.0, 0.0, 1.0], [2.0, 0.0, 5.0]), ([5.1, 0.1, 1.1], [2.1, 0.2, 5.1]), False),  # tied
        (([5.0, 0.0, 1.0], [2.0, 0.0, 6.0]), ([5.1, 0.1, 1.1], [2.1, 0.2, 6.2]), False),
        (([0.0, 0.0, 1.0], [2.0, 0.0, 0.0]), ([5.1, 0.1, 1.1], [2.1, 0.2, 5.2]), False),  # zeros
    ],
)
def test_tied_weights_of_two_stages_should_stay_equal(
    first: tuple[list[float], list[float]], later: tuple[list[float], list[float]], named: bool
) -> None:
    drift = finding(judged([stage_step(1, *first), stage_step(2, *later)]))
    assert (drift is not None) is named
    if drift is not None:
        assert drift.severity == "warning"
        assert "Parameter 1 of rank 0 and parameter 3 of rank 1 (24 x 16)" in drift.summary


def test_layers_that_stages_draw_from_one_seed_are_not_tied() -> None:
    same = [[24, 16], [16], [16, 16]]
    steps = [
        stage_step(1, [5.0, 0.0, 1.0], [5.0, 0.0, 2.0], shapes=same),
        stage_step(2, [5.1, 0.0, 1.1], [5.2, 0.0, 2.1], shapes=same),
    ]
    assert finding(judged(steps)) is None


@pytest.mark.parametrize(
    ("earlier", "named"),
    [
        ([1.0, 1.0], True),
        ([1.0, 2.0], False),  # drawn from other seeds: other stages, or ranks that start apart
        ([1.0, 1.0, 1.0, 1.0], False),  # two stages of one shape from one seed, of two pipelines
    ],
)
def test_copies_of_a_stage_should_stay_equal(earlier: list[float], named: bool) -> None:
    """Of two pipelines, whose last stages are averaged."""
    steps = []
    for number in (1, 2):
        ranks = [record([[]], number) for _ in earlier]
        for index, (rank, value) in enumerate(zip(ranks, earlier, strict=True)):
            rank.micro_batches[0].relayed = True
            rank.replica = Replica(1, [0], [value + index * (number - 1)], [[4, 4]])
        group = [len(earlier), len(earlier) + 1]
        last = [
            record([term(10, 1 / 10)], number, sync="averaged", wrapper="ddp", data_group=group)
            for _ in group
        ]
        for rank in last:
            rank.replica = Replica(1, [0], [5.0 + number], [[4, 8]])
        steps.append(facts(*ranks, *last))
    drift = finding(judged(steps))
    assert (drift is not None) is named
    assert drift is None or "Ranks 0, 1 hold no loss" in drift.summary


@pytest.mark.parametrize(("shape", "severity"), [([4], "warning"), ([4, 4], "info")])
def test_a_matrix_that_differs_between_tensor_parallel_ranks_may_be_drawn_from_one_seed(
    shape: list[int], severity: str
) -> None:
    made = []
    for number, last in enumerate(((3.0, 3.0), (3.1, 3.2)), 1):
        rows = [one_rank(number, rank, [1.0, 2.0, last[rank]]) for rank in (0, 1)]
        for row, prints in zip(rows, last, strict=True):
            row.replica = Replica(3, [0, 1, 2], [1.0, 2.0, prints], [[4], [4], shape])
        peers = {rank: accepted(row) for rank, row in enumerate(rows)}
        made.append(facts(rows[0], tensor_peers=peers))
    named = finding(judged(made))
    assert named and named.severity == severity
    assert "If they are parts that start from equal values" in named.summary


@pytest.mark.parametrize(
    ("norms", "apart", "severity"),
    [
        ((1.0, 1.0 + 1e-7), 1e-5, "info"),
        ((1.0, 1.0), 1e-5, "error"),  # the ranks' sums are equal bit by bit
        ((1.0, 1.0 + 1e-7), 0.1, "error"),  # far more than rounding
    ],
)
def test_sums_in_another_order_on_each_rank_differ_by_rounding(
    norms: tuple[float, float], apart: float, severity: str
) -> None:
    equal = [1.0, 2.0]
    drifted = run((equal, equal), ([2.0, 3.0], [2.0 + apart, 3.0]), norm=norms)
    report = finding(drifted)
    assert report is not None
    assert report.severity == severity
    assert ("bit by bit" in report.summary) == (severity == "info")
