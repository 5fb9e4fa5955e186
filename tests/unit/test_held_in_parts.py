"""A loop combines gradients of experts over their copies, and those of the rest over all ranks."""

from __future__ import annotations

from typing import Any

import pytest

from gradledger.records import Event, Layers, Replica, Samples, StepRecord
from gradledger_monitor.model.step_facts import StepFacts
from gradledger_monitor.rules.ddp.replicas import Replicas
from helpers.facts import accused, facts, judged, record, term

WORLD = "reduction.world_size"
SHARED = ([1.0, -2.0, 0.5], [3.0, 1.0, -0.25], [0.5, 2.0, 1.0], [1.5, -0.5, 3.0])
EXPERTS = ([2.0, 1.0, -1.0], [7.0, -3.0, 2.0], [1.0, 5.0, 0.5], [-2.0, 1.0, 4.0])
COPIES = ([0, 2], [1, 3])  # ranks with one expert


def added(rows: Any, ranks: list[int], factor: float) -> list[float]:
    return [factor * sum(rows[rank][i] for rank in ranks) for i in range(3)]


def ranks(of_all: float, of_groups: float, **more: Any) -> list[StepRecord]:
    """Four ranks with data of their own, which exchange activations."""
    records = []
    for rank in range(4):
        applied = [
            *added(SHARED, [0, 1, 2, 3], of_all),
            *added(EXPERTS, COPIES[rank % 2], of_groups),
        ]
        sent: dict[str, Any] = {"post_factor": None, "sync": "unknown", "collectives_after": 8}
        sent |= {"samples": Samples([*SHARED[rank], *EXPERTS[rank]], applied), "changed": True}
        sent["before_hooks"] = True  # from the second window on
        # the embedding, and one expert: another one on each rank of a pair
        sent["replica"] = Replica(2, [0, 1], [5.0, float(rank % 2)], [[4], [4]])
        step = record([term(10, 1 / 10)], **{**sent, **more})
        step.micro_batches[0].fingerprint = float(rank + 1)
        step.micro_batches[0].loss, step.micro_batches[0].collectives = 1.0 + rank, 2
        records.append(step)
    return records


def merged(of_all: float, of_groups: float, **more: Any) -> StepFacts:
    return facts(*ranks(of_all, of_groups, **more))


def test_one_divisor_for_all_is_right() -> None:
    step = merged(0.25, 0.25)
    assert step.ledger is not None
    assert (step.ledger.tokens, step.ledger.balance) == pytest.approx((40, 1))
    evaluation = judged([step])
    assert accused(evaluation) == {}
    assert evaluation.coverage["ddp.replica_drift"].startswith("ok")


@pytest.mark.parametrize(
    ("of_groups", "size"), [(0.5, "2 times too large"), (1, "4 times too large"), (0.125, "small")]
)
def test_another_divisor_for_experts_is_named(of_groups: float, size: str) -> None:
    evaluation = judged([merged(0.25, of_groups)])
    assert accused(evaluation) == {WORLD: 1}
    (finding,) = (f for f in evaluation.findings if f.rule == WORLD)
    assert size in finding.summary and "(0, 2; 1, 3)" in finding.summary


def test_a_factor_that_is_no_number_of_ranks_is_only_the_reason() -> None:
    step = merged(0.25, 0.175)
    assert accused(judged([step])) == {}
    assert "0.25 in parameters that all ranks hold, and by 0.175" in str(step.unmeasured)


def test_ranks_with_the_same_data_may_hold_parts_of_one_layer() -> None:
    sent = ranks(0.25, 0.5)
    for each in sent:
        each.micro_batches[0].fingerprint = 1.0
    step = facts(*sent)
    assert "the ranks step on different gradients" in str(step.unmeasured)
    assert WORLD not in accused(judged([step]))


@pytest.mark.parametrize("more", [{"collectives_after": 0}, {"wrapper": "ddp"}])
def test_nothing_is_claimed_of_hooks_and_wrappers(more: dict[str, Any]) -> None:
    assert WORLD not in accused(judged([merged(0.25, 0.5, **more)]))


def test_ranks_that_only_combine_are_no_holders_of_parts() -> None:
    """Without communication within backward, each gradient is of one rank's tokens."""
    sent = ranks(0.25, 0.5)
    for each in sent:
        each.micro_batches[0].collectives = 0
    assert WORLD not in accused(judged([facts(*sent)]))


def test_equal_copies_that_drift_are_not_called_parts() -> None:
    steps = [merged(0.25, 0.25, replica=Replica(2, [0, 1], [5.0, 1.0], [[4], [4]]))]
    sent = ranks(0.25, 0.25)
    for each in sent:
        each.step = 2
    coverage = judged([*steps, facts(*sent)]).coverage["ddp.replica_drift"]
    assert not coverage.startswith("ok: groups")


def alone(of_all: float, of_groups: float) -> StepFacts:
    """Without an exchange: the tokens of a pair alone reach its expert."""
    records = ranks(of_all, of_groups)
    for each in records:
        each.micro_batches[0].collectives, each.before_hooks = 0, False
    return facts(*records)


def test_without_an_exchange_one_divisor_is_right_too() -> None:
    step = alone(0.25, 0.25)
    assert step.ledger is not None
    assert (step.ledger.tokens, step.ledger.balance) == pytest.approx((40, 1))
    assert accused(judged([step])) == {}


def test_without_an_exchange_another_divisor_may_be_meant() -> None:
    step = alone(0.25, 0.5)
    assert step.ledger is None
    assert accused(judged([step])) == {}


def one_expert_on_each(factor: float, exchanges: bool) -> StepFacts:
    """The rest is averaged over four ranks; ``factor`` is that on the gradient of each expert."""
    sent = ranks(0.25, 0.25, exchanges=exchanges)
    for rank, step in enumerate(sent):
        assert step.samples is not None
        step.samples.at_step[3:] = added(EXPERTS, [rank], factor)
        step.replica = Replica(2, [0, 1], [5.0, float(rank)], [[4], [4]])
    return facts(*sent)


def test_an_expert_of_one_rank_has_the_tokens_of_all_ranks_that_send_them() -> None:
    right = one_expert_on_each(0.25, exchanges=True)
    assert right.ledger is not None and right.ledger.balance == pytest.approx(1)
    assert accused(judged([right])) == {}
    evaluation = judged([one_expert_on_each(1, exchanges=True)])
    (finding,) = (f for f in evaluation.findings if f.rule == WORLD)
    assert "4 times too large" in finding.summary and "(0; 1; 2; 3)" in finding.summary


def test_experts_of_ranks_that_clip_by_their_own_norms_are_not_measured() -> None:
    """The copies of the rest are multiplied by another number on each rank, and drift."""
    sent = ranks(0.25, 0.25, exchanges=True)
    for rank, step in enumerate(sent):
        coefficient = 0.5 + 0.1 * rank
        step.events = [Event("clip_norm", after=1, limit=1.0, norm=1 / coefficient)]
        step.norm = 1.0
        assert step.samples is not None
        step.samples.at_step[3:] = added(EXPERTS, [rank], 0.25)
        step.samples.at_step = [coefficient * value for value in step.samples.at_step]
    assert facts(*sent).ledger is None


@pytest.mark.parametrize("factor", [0.25, 1])
def test_what_one_rank_has_alone_may_be_its_own_where_no_tokens_are_sent(factor: float) -> None:
    step = one_expert_on_each(factor, exchanges=False)
    assert step.ledger is None
    assert WORLD not in accused(judged([step]))


def after(
    first: tuple[float, ...], then: tuple[float, ...], combined: tuple[list[int], ...] = ()
) -> list[StepFacts]:
    """Two windows; fingerprints of the expert that each rank holds, before each of them.

    Each rank steps on the gradient of its own expert, or on that of its group.
    """
    windows = []
    for number, prints in enumerate((first, then), 1):
        sent = ranks(0.25, 0.25)
        for rank, step in enumerate(sent):
            group = next((g for g in combined if rank in g), [rank])
            assert step.samples is not None
            step.samples.at_step[3:] = added(EXPERTS, group, 0.25)
            step.step = number
            step.replica = Replica(2, [0, 1], [5.0 + number, prints[rank]], [[4], [4]])
        windows.append(facts(*sent))
    return windows


def drift(*windows: StepFacts) -> str:
    found = [f for f in judged(windows).findings if f.rule == "ddp.replica_drift"]
    return found[0].summary if found else ""


def test_copies_that_become_different_are_named() -> None:
    summary = drift(*after((1.0, 2.0, 1.0, 2.0), (1.1, 2.1, 1.2, 2.2)))
    assert "equal at first within these groups of ranks" in summary and "0, 2; 1, 3" in summary
    assert summary.endswith("and step on different ones of these.")


def test_experts_that_are_combined_over_other_groups_than_their_copies_are_named() -> None:
    """Over the ranks that exchange activations, which hold different experts."""
    windows = after((1.0, 2.0, 1.0, 2.0), (1.1, 2.1, 1.2, 2.2), combined=([0, 1], [2, 3]))
    assert "those of these over other groups: 0, 1; 2, 3" in drift(*windows)


@pytest.mark.parametrize(
    ("first", "then"),
    [
        ((1.0, 2.0, 1.0, 2.0), (1.1, 2.1, 1.1, 2.1)),  # copies that stay equal
        ((1.0, 2.0, 3.0, 4.0), (1.1, 2.1, 3.2, 4.2)),  # each rank holds an expert of its own
        ((1.0, 2.0, 2.0, 2.0), (1.1, 2.1, 2.2, 2.3)),  # no groups of one size
    ],
)
def test_experts_of_which_no_copies_become_different_are_left_alone(
    first: tuple[float, ...], then: tuple[float, ...]
) -> None:
    assert "copies" not in drift(*after(first, then))


def test_copies_that_are_averaged_from_time_to_time_are_left_alone() -> None:
    start, apart, again = (1.0, 2.0, 1.0, 2.0), (1.1, 2.1, 1.2, 2.2), (1.3, 2.3, 1.3, 2.3)
    replicas = Replicas()
    for window in (*after(start, apart), *after(again, apart)):
        replicas.add(window)
    assert replicas.copies_equal_again and not replicas.equal_again


def test_copies_that_come_close_once_do_not_hide_that_the_rest_drifts() -> None:
    copies = (1.0, 2.0, 1.0, 2.0), (1.1, 2.1, 1.100002, 2.100002), (1.2, 2.2, 1.2000005, 2.2000005)
    replicas = Replicas()
    for window in after(copies[0], copies[1]) + after(copies[2], copies[2]):
        replicas.add(window)
    assert not (replicas.copies_apart or replicas.equal_again or replicas.copies_equal_again)


def test_heads_of_their_own_from_a_few_seeds_are_no_copies_of_experts() -> None:
    """Nothing shows that the ranks exchange activations."""
    windows = after((1.0, 2.0, 1.0, 2.0), (1.1, 2.1, 1.2, 2.2))
    for window in windows:
        for step in window.records.values():
            step.micro_batches[0].collectives = 0
    assert "copies" not in drift(*windows)


def test_only_parameters_of_the_groups_that_are_named_are_listed() -> None:
    first, then = after((1.0, 2.0, 1.0, 2.0), (1.1, 2.1, 1.2, 2.2))
    for window, pairs in ((first, (3.0, 3.0, 4.0, 4.0)), (then, (3.1, 3.2, 4.1, 4.2))):
        for step, value in zip(window.records.values(), pairs, strict=True):
            assert step.replica is not None
            step.replica.total, step.replica.indices[:] = 3, [0, 1, 2]
            step.replica.fingerprints.append(value)
            step.replica.shapes.append([8])
    summary = drift(first, then)
    assert "1 of 3 parameters was equal" in summary and "0, 2; 1, 3" in summary
    assert "parameter 1 [4]" in summary and "[8]" not in summary


@pytest.mark.parametrize("wrapper", ["ddp", "fsdp2"])
def test_copies_that_a_wrapper_ignores_may_be_meant_to_differ(wrapper: str) -> None:
    windows = []
    for number, prints in enumerate(((1.0, 2.0, 1.0, 2.0), (1.1, 2.1, 1.2, 2.2)), 1):
        sent = []
        for value in prints:
            step = record([term(10, 1 / 10)], number, sync="averaged", wrapper=wrapper)
            step.excluded, step.outside = (1, None) if wrapper == "ddp" else (None, 1)
            step.micro_batches[0].wrapper, step.micro_batches[0].collectives = "sync", 1
            step.replica = Replica(2, [0, 1], [5.0 + number, value], [[4], [4]])
            sent.append(step)
        windows.append(facts(*sent))
    (finding,) = (f for f in judged(windows).findings if f.rule == "ddp.replica_drift")
    assert finding.severity == "warning" and "Ignored by" in finding.title
    assert "0, 2; 1, 3" in finding.summary and "this is intended" in finding.summary


def in_parts(
    prints: tuple[tuple[float, float], ...],
    losses: tuple[tuple[float, float], ...],
    gradients: tuple[float, float] = (0.5, 0.5),
    **more: Any,
) -> str:
    """By window, of two ranks: the fingerprint of a matrix that both hold, and the loss.

    ``gradients``: of the parameter that is another one on each rank.
    """
    windows, sums = [], more.pop("sums", [])
    for number, (both, of_ranks) in enumerate(zip(prints, losses, strict=True), 1):
        sent = []
        for rank in range(2):
            step = record([term(10, 1 / 10)], number, sync="none", **more)
            shards = Replica(2, [0, 1], [both[rank], float(rank)], [[4, 4], [4, 2]])
            shards.names[:] = ["body", f"parts.{rank}"]
            step.replica, step.norm = shards, 1.0 + rank
            step.layers = Layers(names=shards.names, gradient=[1.0, gradients[rank]])
            first = step.micro_batches[0]
            first.loss, first.fingerprint = of_ranks[rank], float(number)
            first.sums, first.collectives = list(sums), len(sums)
            sent.append(step)
        windows.append(facts(*sent))
    return drift(*windows)


APART = ((5.0, 5.0), (5.1, 5.2), (5.2, 5.4))


def test_copies_beside_the_parts_of_one_model_that_become_different_are_named() -> None:
    summary = in_parts(APART, ((2.0, 2.0), (1.9, 1.901), (1.8, 1.802)))
    assert "they compute one model in parts" in summary and "body [4, 4]" in summary


def test_other_layers_whose_gradients_are_added_up_in_backward_make_no_difference() -> None:
    losses = ((2.0, 2.0), (1.9, 1.901), (1.8, 1.802))
    assert "body [4, 4]" in in_parts(APART, losses, sums=[0.0, 0.0])
    assert not in_parts(APART, ((2.0, 2.0), (1.9, 1.9), (1.8, 1.8)), sums=[0.0, 0.0])


@pytest.mark.parametrize(
    ("gradients", "half"),
    [((0.0, 0.0), False), ((0.5, 0.0), False), ((1e-8, 1e-8), False), ((0.5, 0.5), True)],
)
def test_parts_that_may_not_reach_the_loss_at_first_show_nothing(
    gradients: tuple[float, float], half: bool
) -> None:
    """Adapters that are multiplied by zeros, for example: each rank may train its own."""
    losses = ((2.0, 2.0), (1.9, 1.901), (1.8, 1.802))
    assert in_parts(APART, losses, gradients, half_precision=half) == ""


@pytest.mark.parametrize(
    ("prints", "losses"),
    [
        (APART, ((2.0, 2.0), (1.9, 1.9), (1.8, 1.8))),  # a part that starts equal
        (APART, ((2.0, 2.1), (1.9, 1.901), (1.8, 1.802))),  # models of their own
        (APART, ((2.0, 2.0000001), (1.9, 1.901), (1.8, 1.802))),  # and nearly of zeros
        (((5.0, 5.0), (5.1, 5.1), (5.2, 5.2)), ((2.0, 2.0), (1.9, 1.901), (1.8, 1.802))),
        (((0.0, 0.0), *APART[1:]), ((2.0, 2.0), (1.9, 1.901), (1.8, 1.802))),  # a head of zeros
    ],
)
def test_other_ranks_of_one_batch_are_left_alone(prints: Any, losses: Any) -> None:
    assert in_parts(prints, losses) == ""


def beside_an_expert(name: str, shape: list[int], expert: tuple[float, ...]) -> tuple[str, str]:
    """What is found, and the coverage, where a parameter that was equal on all ranks drifts.

    Each rank has an expert, to which all send tokens.
    """
    windows = []
    for number in range(1, 8):
        sent = ranks(0.25, 0.25, exchanges=True)
        for rank, step in enumerate(sent):
            assert step.samples is not None
            step.samples.at_step[3:] = added(EXPERTS, [rank], 0.25)
            step.step = number
            then = 0.1234567 + (number - 1) * (0.1 + rank)
            prints = [5.123456 + number, expert[rank] + number, then]
            names = ["moe.gate.weight", "moe.expert.down.weight", name]
            step.replica = Replica(3, [0, 1, 2], prints, [[4, 4], [4, 4], shape], names)
        windows.append(facts(*sent))
    return drift(*windows), judged(windows).coverage["ddp.replica_drift"]


DRAWN_APART = (1.234567, 2.345678, 3.456789, 4.567891)


@pytest.mark.parametrize(
    ("name", "shape", "expert"),
    [
        ("moe.expert.up.weight", [4, 4], DRAWN_APART),
        ("moe.router.weight", [4, 4], DRAWN_APART),
        ("moe.router.weight", [4, 4], (1.234567,) * 4),
        ("scale", [4], (1.234567,) * 4),
    ],
    ids=["half of a dense layer", "a router", "all of one seed", "a vector"],
)
def test_what_may_be_an_expert_is_not_measured(
    name: str, shape: list[int], expert: tuple[float, ...]
) -> None:
    """A router that is left out looks like an expert of a dense layer, a norm layer like a vector
    of each rank."""
    summary, coverage = beside_an_expert(name, shape, expert)
    assert summary == "" and coverage.startswith("not_measured: the ranks exchange activations")


def test_a_vector_in_a_module_of_experts_is_a_part_of_it() -> None:
    summary, coverage = beside_an_expert("moe.expert.down.bias", [4], DRAWN_APART)
    assert summary == "" and coverage.startswith("ok")
