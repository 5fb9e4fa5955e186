"""Ranks under DDP and FSDP: what counts as a synchronisation, and which ranks differ."""

from __future__ import annotations

import random
from typing import Any

import pytest

from gradledger.records import Event, MicroBatch, Replica, Samples, StepRecord
from gradledger_monitor.model.findings import EvaluationResult, Finding
from gradledger_monitor.model.step_facts import StepFacts
from gradledger_monitor.model.unmeasured import OF_CHANGES
from gradledger_monitor.rules.ddp.common import names, synced
from helpers.facts import accepted, accused, facts, judged, record, term


def rank(*decided: str | None, wrapper: str | None = "ddp", **more: Any) -> StepRecord:
    """A window whose micro-batches each ran one collective, unless their wrapper held it back."""
    terms = [term(10, 1 / (10 * len(decided))) for _ in decided]
    step_record = record(
        terms, more.pop("number", 2), wrapper=wrapper, **{"sync": "averaged", **more}
    )
    for micro_batch, decision in zip(step_record.micro_batches, decided, strict=True):
        micro_batch.wrapper, micro_batch.collectives = decision, int(decision != "no_sync")  # type: ignore[assignment]
    return step_record


def finding_of(rule: str, *ranks: StepRecord) -> Finding | None:
    """The finding of a rule in one step."""
    return next((f for f in judged([facts(*ranks)]).findings if f.rule == rule), None)


def answer(rule: str, step: StepFacts) -> str:
    """The same where it finds nothing: the answer, with its reason."""
    return judged([step]).coverage[rule]


@pytest.mark.parametrize(
    ("wrapper", "decided", "collectives", "is_one"),
    [
        ("ddp", "sync", 1, True),
        ("ddp", "no_sync", 1, False),
        ("ddp", None, 1, False),
        ("ddp", "sync", 0, False),
        ("ddp", "sync", None, False),
        ("fsdp2", "sync", 1, True),
        ("fsdp2", "no_sync", 1, False),
        ("fsdp", None, 1, True),
        (None, None, 1, False),
        (None, "sync", 1, True),
    ],
)
def test_a_collective_in_backward_is_a_synchronisation_where_the_wrapper_decided_so(
    wrapper: Any, decided: Any, collectives: int | None, is_one: bool
) -> None:
    step_record = rank("sync", wrapper=wrapper)
    step_record.micro_batches[0] = MicroBatch(wrapper=decided, collectives=collectives)
    read = accepted(step_record)
    assert synced(read, read.micro_batches[0]) is is_one


def test_eight_ranks_are_named_and_more_are_hinted_at() -> None:
    assert names(list(range(8))) == "Ranks 0, 1, 2, 3, 4, 5, 6, 7"
    assert names(list(range(9))) == "Ranks 0, 1, 2, 3, 4, 5, 6, 7 ..."


# ---------------------------------------------------------------------- synchronised too often

TOO_OFTEN = "ddp.missing_no_sync"


def test_a_window_of_two_that_is_synchronised_twice_reports_its_cost() -> None:
    twice = rank("sync", "sync", sync_bytes=3_000_000)
    finding = finding_of(TOO_OFTEN, twice, twice)
    assert finding is not None
    assert (finding.severity, finding.summary) == (
        "warning",
        "1 gradient synchronisation per step can be avoided, 3.0 MB per rank. The extra "
        "synchronisation costs time; the gradient is the same up to rounding.",
    )
    assert (finding.evidence["wasted"], finding.evidence["wasted_bytes"]) == (1, 3_000_000)
    unknown = finding_of(TOO_OFTEN, *[rank("sync", "sync")] * 2)
    assert unknown is not None and unknown.evidence["wasted_bytes"] is None
    assert unknown.evidence["backward_ms"] == [0.0, 0.0]


@pytest.mark.parametrize(
    ("wrapper", "fix"), [("ddp", "model.no_sync()"), ("fsdp2", "model.set_requires_gradient_sync(")]
)
def test_the_fix_of_too_many_synchronisations_is_that_of_the_wrapper(
    wrapper: Any, fix: str
) -> None:
    twice = rank("sync", "sync")
    twice.wrapper = wrapper
    finding = finding_of(TOO_OFTEN, twice, twice)
    assert finding is not None and fix in finding.fix


def test_optimizers_that_share_backwards_have_one_finding_between_them() -> None:
    second = rank("sync", "sync")
    for micro_batch in second.micro_batches:
        micro_batch.claimed = True  # the first one has stepped on both
    assert finding_of(TOO_OFTEN, second, second) is None
    second.micro_batches[0].claimed = False
    assert finding_of(TOO_OFTEN, second, second) is not None


def test_a_synchronisation_that_another_optimizer_needs_cannot_be_avoided() -> None:
    """It stepped after the second micro-batch, and steps again after the last, second in turn."""
    slow = rank("sync", "sync", "sync", "sync")
    for micro_batch in slow.micro_batches[:2]:
        micro_batch.claimed = True
    finding = finding_of(TOO_OFTEN, slow, slow)
    assert finding is not None and finding.evidence["wasted"] == 1
    held_back = rank("sync", "no_sync", "sync")
    held_back.micro_batches[0].claimed = True
    assert finding_of(TOO_OFTEN, held_back, held_back) is None


@pytest.mark.parametrize(
    "decided", [("sync",), ("no_sync", "sync"), ("sync", "no_sync"), ("sync", "sync", "no_sync")]
)
def test_once_or_not_on_the_last_is_no_synchronisation_too_often(decided: tuple[str, ...]) -> None:
    assert finding_of(TOO_OFTEN, *[rank(*decided)] * 2) is None


def test_the_first_window_in_which_buckets_are_rebuilt_is_left_alone() -> None:
    assert finding_of(TOO_OFTEN, *[rank("sync", "sync", number=1)] * 2) is None


def test_a_comm_hook_that_was_not_seen_to_average_leaves_the_gradient_open() -> None:
    finding = finding_of(TOO_OFTEN, *[rank("sync", "sync", sync="unknown")] * 2)
    assert finding is not None
    assert finding.summary.endswith(
        "the gradient depends on the comm hook, which was not observed to average."
    )


def test_of_backwards_that_synchronise_one_of_several_models_no_volume_is_stated() -> None:
    """Two models, of which ``accumulate()`` has one."""
    in_part = rank("sync", "sync", "sync", sync_bytes=3_000_000)
    in_part.micro_batches[-1].collectives = 2
    finding = finding_of(TOO_OFTEN, in_part, in_part)
    assert finding is not None and finding.evidence["wasted_bytes"] is None
    assert finding.summary.startswith(
        "2 gradient synchronisations per step can be avoided. Some ran fewer collectives than the "
        "last backward"
    )


def test_under_fsdp_it_may_be_meant_and_is_information() -> None:
    finding = finding_of(TOO_OFTEN, *[rank("sync", "sync", wrapper="fsdp2")] * 2)
    assert finding is not None and finding.severity == "info"
    assert finding.summary.endswith(" Under FSDP it saves memory, so it may be intended.")


def test_under_fsdp1_only_backwards_that_all_ran_equally_many_collectives_each_reduced() -> None:
    alike, unlike = rank(None, None, wrapper="fsdp"), rank(None, None, wrapper="fsdp")
    unlike.micro_batches[1].collectives = 3
    assert finding_of(TOO_OFTEN, alike, alike) is not None
    assert finding_of(TOO_OFTEN, unlike, unlike) is None


def test_under_ddp_backwards_with_unlike_collectives_are_synchronised_each_all_the_same() -> None:
    unlike = rank("sync", None, "sync")
    unlike.micro_batches[2].collectives = 3
    assert finding_of(TOO_OFTEN, unlike, unlike) is not None


# ---------------------------------------------------------------------- synchronised too early

EARLY = "ddp.wrong_microbatch_synced"


def test_a_window_that_is_synchronised_before_its_end_states_how_much_stays_behind() -> None:
    early = rank("no_sync", "sync", "no_sync", "no_sync", "no_sync")
    finding = finding_of(EARLY, early, early)
    assert finding is not None
    assert finding.title == "Micro-batch 2 is synchronised, the last one is not"
    assert (
        "in the backward of micro-batch 2 of 5. The gradients of 3 later micro-batches stay"
        in finding.summary
    )
    assert finding_of(EARLY, *[rank("sync", "no_sync")] * 2) is not None


def test_a_rank_that_is_synchronised_before_its_end_is_named() -> None:
    finding = finding_of(EARLY, rank("no_sync", "sync"), rank("sync", "no_sync"))
    assert finding is not None
    assert finding.summary.startswith("On rank 1, gradients were synchronised in the backward of")


def test_only_the_ranks_that_the_numbers_are_true_of_are_named() -> None:
    early, later = rank("sync", *["no_sync"] * 3), rank("no_sync", "sync", *["no_sync"] * 2)
    finding = finding_of(EARLY, early, later, early)
    assert finding is not None
    assert finding.summary.startswith(
        "On ranks 0, 2, gradients were synchronised in the backward of micro-batch 1 of 4."
    )


@pytest.mark.parametrize("more", [{"skipped": True}, {"collectives_after": 1}, {"wrapper": "fsdp"}])
def test_an_early_synchronisation_is_left_alone_where_it_may_not_be_all(
    more: dict[str, Any],
) -> None:
    assert finding_of(EARLY, *[rank("sync", "no_sync", **more)] * 2) is None
    thrown_away = rank("sync", "no_sync")
    thrown_away.micro_batches[1].fresh = True
    assert finding_of(EARLY, thrown_away, thrown_away) is None


def test_no_collective_after_backward_excuses_ranks_that_step_on_different_gradients() -> None:
    logs: dict[str, Any] = {"collectives_after": 1}
    each = [rank("sync", "no_sync", norm=norm, **logs) for norm in (1.0, 2.0)]
    assert finding_of(EARLY, *each) is not None
    unknown = [rank("sync", "no_sync", missing={"norm": "why"}, **logs) for _ in range(2)]
    assert finding_of(EARLY, *unknown) is None
    sharded = [rank("sync", "no_sync", wrapper="fsdp2", **logs) for _ in range(2)]
    assert finding_of(EARLY, *sharded) is not None  # what is not reduced is outside .grad


# ---------------------------------------------------------------------- never synchronised


def alone(norms: tuple[float | None, ...] = (1.0, 2.0), **more: Any) -> Finding | None:
    """Ranks whose wrapper holds every backward back."""
    fields: dict[str, Any] = {"sync": "none", **more}
    return finding_of("ddp.never_synced", *[rank("no_sync", norm=norm, **fields) for norm in norms])


def test_ranks_that_never_meet_are_reported() -> None:
    finding = alone()
    assert finding is not None
    assert finding.evidence["norms"] == {"0": 1.0, "1": 2.0}
    assert alone(skipped=True) is None
    assert finding_of("ddp.never_synced", *[rank(sync="none")] * 2) is None  # no backward at all


@pytest.mark.parametrize(
    ("norms", "more", "is_reported"),
    [
        ((1.0, 1.0), {}, False),  # alike after a collective: the loop has combined them
        ((1.0, 1.0009), {}, False),
        ((100.0, 100.09), {}, False),
        ((None, None), {}, False),
        ((1.0, 1.01), {}, True),
        ((100.0, 100.2), {}, True),
        ((1.0, None), {}, True),
        ((1.0, 2.0), {"sync": "averaged"}, False),  # it was seen to combine them
        ((1.0, 1.0001), {"collectives_after": 0}, True),
    ],
)
def test_a_collective_after_backward_may_combine_ranks_unless_each_keeps_its_own_norm(
    norms: tuple[float | None, ...], more: dict[str, Any], is_reported: bool
) -> None:
    assert (alone(norms, **{"collectives_after": 1, **more}) is not None) is is_reported


def test_norms_are_those_before_clipping_which_makes_them_equal() -> None:
    clips = [Event("clip_norm", after=1, limit=1.0, norm=norm) for norm in (2.0, 4.0)]
    ranks = [
        rank("no_sync", sync="none", norm=1.0, events=[clip], collectives_after=1) for clip in clips
    ]
    finding = finding_of("ddp.never_synced", *ranks)
    assert finding is not None
    assert finding.evidence["norms"] == pytest.approx({"0": 2.0, "1": 4.0}, rel=1e-5)


def test_local_sgd_under_a_wrapper_is_left_alone() -> None:
    assert alone(averaging=True) is None
    drifts = [
        rank("no_sync", sync="none", parameters=value, averaging=True) for value in (5.0, 6.0)
    ]
    assert finding_of("ddp.replica_drift", *drifts) is None


def test_gradients_that_are_equal_without_a_collective_may_be_combined_elsewhere() -> None:
    """By MPI, a store or shared memory; or the ranks have the same data."""
    ranks = [rank("no_sync", sync="none", norm=1.0) for _ in "ab"]
    assert "besides torch.distributed" in answer("ddp.never_synced", facts(*ranks))
    assert alone((0.0, 0.0)) is not None  # no gradient


@pytest.mark.parametrize("field", ["parameters", "replica"])
def test_models_that_differ_show_that_equal_norms_are_of_different_gradients(field: str) -> None:
    """Each rank divides its gradients by their norm."""
    values: list[Any] = [1.0, 2.0]
    if field == "replica":
        values = [Replica(1, [0], [value], [[4]]) for value in values]
    ranks = [rank("no_sync", sync="none", norm=1.0, **{field: value}) for value in values]
    assert finding_of("ddp.never_synced", *ranks) is not None


OWN = ([1.0, -2.0, 0.5, 4.0], [3.0, 1.0, -0.25, 2.0])
MEAN = [2.0, -0.5, 0.125, 3.0]
WEIGHTED = [1.2, -1.7, 0.425, 3.8]  # nine tenths of rank 0
ROUNDED = [1.01, -2.02, 0.505, 4.04]  # rank 0 sends its model, which each rank then scales
OUTER = [2.5, -0.75, 0.25, 3.5]  # of an outer optimizer with a momentum


def trained_apart(*models: list[float] | None) -> EvaluationResult:
    """Windows without synchronisation; before each, the models of all ranks became these."""
    steps = []
    for number, now in enumerate(models, 1):
        samples = [None if now is None else Samples(own, now) for own in OWN]
        fields: dict[str, Any] = {"number": number, "sync": "none"}
        each = enumerate(samples, 1)
        ranks = [rank("no_sync", norm=i, parameters=i, models=m, **fields) for i, m in each]
        steps.append(facts(*ranks))
    return judged(steps)


@pytest.mark.parametrize(
    ("models", "status"),
    [
        ([None, MEAN], "not_applicable"),
        ([None, MEAN, None, None], "not_applicable"),
        ([None, WEIGHTED], "not_applicable"),
        ([None, OUTER], "finding"),  # a checkpoint that all ranks loaded
        ([None, OUTER, None, OUTER], "not_measured"),
        ([None, OUTER, None, MEAN], "not_applicable"),
        ([None, OWN[0], None, OWN[0]], "finding"),  # rank 0 sends its model to the others
        ([None, ROUNDED, None, ROUNDED], "finding"),
        ([None, None, None], "finding"),
    ],
)
def test_a_finding_on_ranks_that_average_their_models_later_is_withdrawn(
    models: list[list[float] | None], status: str
) -> None:
    evaluation = trained_apart(*models)
    findings = {finding.rule for finding in evaluation.findings}
    accused = {"ddp.never_synced", "ddp.replica_drift"}
    assert findings == (accused if status == "finding" else set())
    assert evaluation.coverage["ddp.never_synced"].startswith(status)


def test_ranks_that_exchange_parts_of_their_models_are_not_measured() -> None:
    """Each moves halfway to the average: gossip, or an average that arrives later."""
    steps = []
    for number in (1, 2, 3):
        fields: dict[str, Any] = {"number": number, "sync": "none"}
        ranks = [rank("no_sync", norm=n, parameters=n, **fields) for n in (1.0, 2.0)]
        for each, own in zip(ranks, OWN, strict=True):
            moved = [(o + m) / 2 for o, m in zip(own, MEAN, strict=True)]
            each.models = Samples(own, moved) if number == 2 else None
        steps.append(facts(*ranks))
    assert "ddp.never_synced" in accused(judged(steps[:1]))
    evaluation = judged(steps)
    assert not evaluation.findings
    assert "gossip" in evaluation.coverage["ddp.never_synced"]


def test_outer_steps_with_a_momentum_are_local_sgd() -> None:
    """DiLoCo: the third outer step follows from the second one and the changes of the models."""
    steps = []
    model, buffer = [0.5 + i for i in range(12)], [0.0] * 12
    for number in range(1, 5):
        numbers = random.Random(number)
        drifts = [[numbers.gauss(0, 0.1) for _ in model] for _ in "ab"]
        owns = [[m + d for m, d in zip(model, drift, strict=True)] for drift in drifts]
        buffer = [
            0.9 * b + sum(c) / 2 for b, c in zip(buffer, zip(*drifts, strict=True), strict=True)
        ]
        model = [m + 0.7 * b for m, b in zip(model, buffer, strict=True)]
        for local in (True, False):
            models = [None if local else Samples(own, model) for own in owns]
            step = 2 * number - local
            fields: dict[str, Any] = {"number": step, "sync": "none"}
            ranks = [
                rank("no_sync", norm=i, parameters=i, models=m, **fields)
                for i, m in enumerate(models, 1)
            ]
            steps.append(facts(*ranks))
    coverage = [judged(steps[:n]).coverage["ddp.never_synced"][:9] for n in (2, 4, 6, 8)]
    assert coverage == ["finding", "not_measu", "not_appli", "not_appli"]


def test_an_outer_optimizer_has_no_loss_to_measure() -> None:
    """DiLoCo without a wrapper: it steps on the average of the changes, and no backward is its."""
    changes = [[0.5, -0.25, 0.125, 1.0], [0.25, 0.5, -1.0, 0.75]]
    average = [sum(column) / 2 for column in zip(*changes, strict=True)]
    steps = []
    for number in (1, 2, 3):
        outer = [
            StepRecord(1, number, 0.0, norm=1.0, models=Samples(own, average)) for own in changes
        ]
        for each in outer:
            each.sync, each.empty = "unknown", True
        steps.append(facts(*outer, optimizers=["AdamW", "SGD"]))
    assert steps[0].unmeasured == OF_CHANGES
    coverage = judged(steps).coverage
    assert coverage["reduction.token_weights_unequal"] == f"not_applicable: {OF_CHANGES}"


def test_a_comm_hook_of_local_sgd_combines_nothing_on_purpose() -> None:
    """It all-reduces a norm for a log, and returns the gradients of its rank."""
    steps = []
    for number in (1, 2, 3):
        fields: dict[str, Any] = {"number": number, "sync": "none", "before_hooks": True}
        ranks = [rank("sync", norm=n, parameters=n, **fields) for n in (1.0, 2.0)]
        if number == 3:
            for each, own in zip(ranks, OWN, strict=True):
                each.models = Samples(own, MEAN)
        steps.append(facts(*ranks))
    assert "ddp.never_synced" in accused(judged(steps[:2]))
    assert not judged(steps).findings


def test_replicas_under_a_comm_hook_that_combines_no_more_are_averaged_or_combined() -> None:
    """Post-local SGD whose averager never begins: its warm-up is longer than the run."""
    sent: dict[str, Any] = {"sync": "unknown", "post_factor": None, "before_hooks": True}
    owns = [Samples(own, MEAN) for own in OWN]
    combined = facts(*(rank("sync", norm=1.0, parameters=1.0, samples=x, **sent) for x in owns))
    fields: dict[str, Any] = {"number": 2, "sync": "none", "before_hooks": True}
    alone = facts(*(rank("sync", norm=n, parameters=n, **fields) for n in (1.0, 2.0)))
    (drift,) = (f for f in judged([combined, alone]).findings if f.rule == "ddp.replica_drift")
    assert drift.inhibited_by is None
    assert "comm hook of DDP combines no gradients in this step" in drift.summary
    assert "PeriodicModelAverager" in drift.fix


def test_an_average_of_models_withdraws_no_finding_on_combined_gradients() -> None:
    steps = [facts(*(rank("sync", norm=i, parameters=i) for i in (1.0, 2.0)))]
    for number in (2, 3):
        fields: dict[str, Any] = {"number": number, "sync": "none"}
        models = [Samples(own, MEAN) for own in OWN]
        ranks = [rank("no_sync", norm=i, models=m, **fields) for i, m in enumerate(models, 1)]
        steps.append(facts(*ranks))
    assert [f.rule for f in judged(steps).findings] == ["ddp.replica_drift"]


def test_ranks_that_averaged_their_models_once_are_left_alone_from_then_on() -> None:
    steps = []
    for number in (2, 3):
        more: dict[str, Any] = {"sync": "none", "number": number, "averaging": number == 2}
        steps.append(facts(*[rank("no_sync", norm=norm, **more) for norm in (1.0, 2.0)]))
    assert "ddp.never_synced" not in accused(judged(steps))


# ---------------------------------------------------------------------- uneven ranks


def uneven(*weights: float) -> Finding | None:
    """A rank with one micro-batch of ten tokens, and one with two."""
    one, other = rank("sync"), rank("no_sync", "sync")
    for micro_batch, weight in zip(
        [*one.micro_batches, *other.micro_batches], weights, strict=True
    ):
        micro_batch.terms[0].weight = weight
    evaluation = judged([facts(one, other)])
    return next((f for f in evaluation.findings if f.rule == "ddp.uneven_microbatches"), None)


def test_ranks_with_different_numbers_of_micro_batches_are_reported_unless_tokens_weigh_alike() -> (
    None
):
    finding = uneven(1 / 10, 1 / 20, 1 / 20)
    assert finding is not None
    assert finding.evidence["misallocation"] == pytest.approx(1 / 6, abs=1e-6)
    for weight in (2 / 30, 8 / 30):  # what the balance shows, other rules report
        assert uneven(*[weight] * 3) is None


def test_numbers_of_micro_batches_are_no_cause_of_weights_that_do_not_depend_on_them() -> None:
    """Each rank weighs its micro-batches by their share of its sequences."""
    one, other = rank("sync"), rank("no_sync", "sync")
    for micro_batch, tokens in zip(
        [*one.micro_batches, *other.micro_batches], (10, 4, 16), strict=True
    ):
        micro_batch.terms = [term(tokens, 1 / 10 if micro_batch in one.micro_batches else 0.1)]
    other.micro_batches[0].terms[0].weight = 0.9 / 4
    other.micro_batches[1].terms[0].weight = 0.1 / 16
    found = accused(judged([facts(one, other)])).keys()
    assert found == {"reduction.token_weights_unequal"}


def test_micro_batches_that_a_rank_discards_are_not_counted() -> None:
    """Each rank divides by its tokens; one has zeroed the gradients of a backward before."""
    one, other = rank("no_sync", "no_sync", "sync"), rank("no_sync", "sync")
    one.micro_batches[1].fresh = True
    for micro_batch in one.micro_batches:
        micro_batch.terms = [term(12, 1 / 24)]
    for micro_batch in other.micro_batches:
        micro_batch.terms = [term(8, 1 / 16)]
    assert "ddp.uneven_microbatches" not in accused(judged([facts(one, other)]))


def test_a_rank_without_backward_may_be_the_server_of_a_loop_that_combines_by_hand() -> None:
    server, workers = rank(wrapper=None), [rank("no_sync", wrapper=None) for _ in range(2)]
    result = judged([facts(server, *workers)])
    assert result.coverage["ddp.uneven_microbatches"] == (
        "not_measured: Rank 0: no backward added to the gradients of this window, which may be "
        "intended"
    )


def test_numbers_of_micro_batches_whose_weights_are_unknown_accuse_nobody() -> None:
    one, other = rank("sync"), rank("no_sync", "sync")
    other.micro_batches[0].terms.clear()
    assert judged([facts(one, other)]).coverage["ddp.uneven_microbatches"] == (
        "not_measured: the ranks hold 1 to 2 micro-batches in this window, and the weights of "
        "their elements are unknown"
    )


# ---------------------------------------------------------------------- who differs

DRIFT = "ddp.replica_drift"


def test_replicas_that_differ_are_reported_by_all_that_shows_it() -> None:
    one = rank("sync", norm=1.0, parameters=5.0, lr=0.1)
    other = rank("sync", norm=2.0, parameters=6.0, lr=0.2)
    finding = finding_of(DRIFT, one, other)
    assert finding is not None
    assert finding.summary == (
        "The ranks do not train the same model: after the all-reduce the gradient norms are 1 to "
        "2; the sampled parameters are not equal; the learning rates are 0.1 to 0.2."
    )
    assert finding.evidence["norms"] == [1.0, 2.0]
    assert finding.evidence["learning_rates"] == [0.1, 0.2]


@pytest.mark.parametrize(
    ("name", "one", "other", "words"),
    [
        ("norm", 1.0, 1.01, "after the all-reduce the gradient norms are 1 to 1.01"),
        ("norm", 100.0, 101.0, "after the all-reduce the gradient norms are 100 to 101"),
        ("parameters", 5.0, 5.1, "the sampled parameters are not equal"),
        ("lr", 0.1, 0.11, "the learning rates are 0.1 to 0.11"),
    ],
)
def test_one_sign_is_enough_and_only_what_differs_is_reported(
    name: str, one: float, other: float, words: str
) -> None:
    first: dict[str, Any] = {name: one}
    second: dict[str, Any] = {name: other}
    finding = finding_of(DRIFT, rank("sync", **first), rank("sync", **second))
    assert finding is not None
    assert finding.summary == f"The ranks do not train the same model: {words}."
    assert finding.evidence["parameters_differ"] is (name == "parameters")


def test_rounding_is_no_difference_and_neither_is_a_norm_before_the_all_reduce() -> None:
    assert finding_of(DRIFT, rank("sync", norm=1.0), rank("sync", norm=1.0009)) is None
    assert finding_of(DRIFT, rank("sync", norm=100.0), rank("sync", norm=100.09)) is None
    apart = [rank("sync", norm=norm, sync="unknown") for norm in (1.0, 2.0)]
    assert finding_of(DRIFT, *apart) is None


@pytest.mark.parametrize("more", [{"skipped": True}, {"collectives_after": 1}])
def test_a_skipped_step_and_a_loop_that_synchronises_by_hand_are_left_alone(
    more: dict[str, Any],
) -> None:
    assert finding_of(DRIFT, rank("sync", norm=1.0, **more), rank("sync", norm=2.0, **more)) is None


# ---------------------------------------------------------------------- why nothing is reported


def test_ranks_that_combine_nothing_do_not_synchronise_exactly_once() -> None:
    steps = [
        facts(*[rank(None, wrapper=None, sync="none", norm=n, number=i) for n in (1.0, 2.0)])
        for i in range(1, 4)
    ]
    evaluation = judged(steps)
    (node,) = (node for node in evaluation.tree if node.node == "ddp")
    assert node.status == "not_applicable"
    assert node.reason == "no wrapper and no collective combines the gradients of the ranks"
    assert not evaluation.findings


@pytest.mark.parametrize("rule", ["ddp.duplicate_data", DRIFT, "ddp.uneven_microbatches"])
def test_what_needs_all_ranks_states_which_one_is_missing(rule: str) -> None:
    step = facts(rank("sync"), rank("sync"), world_size=3)
    assert answer(rule, step) == "not_measured: no record of rank 2 arrived"


def test_shards_that_were_combined_in_an_unknown_way_are_not_known_to_be_equal() -> None:
    sent = [rank(None, wrapper=None, sync="unknown", sharded=True, post_factor=None)] * 2
    merged = facts(*sent)
    assert merged.all_reduce is not None and not merged.all_reduce.is_known
    assert answer(DRIFT, merged) == "not_applicable: no DDP model"


def test_ranks_without_a_wrapper_are_asked_nothing_about_one() -> None:
    step = facts(*[rank(None, wrapper=None, sync="none")] * 2)
    assert answer(DRIFT, step) == "not_applicable: no DDP model"
    assert (
        answer("ddp.duplicate_data", step) == "not_applicable: no data-parallel wrapper is in use"
    )
    assert answer("ddp.never_synced", step) == (
        "not_applicable: no wrapper and no collective combines the gradients of the ranks"
    )


def same_data(*windows: tuple[int | None, ...]) -> Finding | None:
    """Two ranks whose micro-batches have the same fingerprints, window by window."""
    steps = []
    for number, prints in enumerate(windows, 1):
        step_record = rank(*["sync"] * len(prints), number=number)
        for micro_batch, fingerprint in zip(step_record.micro_batches, prints, strict=True):
            micro_batch.fingerprint = fingerprint
        steps.append(facts(step_record, step_record))
    findings = judged(steps).findings
    return next((f for f in findings if f.rule == "ddp.duplicate_data"), None)


def test_equal_fingerprints_are_reported_only_where_most_of_them_differ_from_each_other() -> None:
    assert same_data((1, 2), (3, 4), (5, 6)) is not None
    assert same_data((1, 2), (3, 4), (1, 1)) is not None  # four of six
    assert same_data((1, 2), (3, 1), (1, 1)) is None  # three of six
    assert same_data((1, 1), (1, 1), (1, 1)) is None
    later = same_data((1, 1), (1, 1), (1, 1), (1, 2), (3, 4), (5, 6))  # the last three count
    assert later is not None and (later.first_step, later.steps) == (3, 4)


@pytest.mark.parametrize(
    ("collectives", "apart", "inside", "reported"),
    [
        (4, 0, 0, True),
        (3, 0, 0, False),  # fewer than there are parameters: a norm, or losses for a log
        (4, 1, 0, False),  # parts of one model
        (4, 0, 1, False),  # activations of model parallelism
    ],
)
def test_equal_data_of_ranks_that_combine_each_gradient_themselves_are_reported(
    collectives: int, apart: int, inside: int, reported: bool
) -> None:
    steps = []
    for number in range(1, 5):
        pair = [rank(None, number=number, wrapper=None, sync="unknown") for _ in range(2)]
        for index, made in enumerate(pair):
            made.collectives_after = collectives
            made.micro_batches[0].fingerprint = 10.5 * number
            made.micro_batches[0].collectives = inside
            prints = [1.0, 2.0, 3.0, 4.0 + apart * index]
            made.replica = Replica(4, [0, 1, 2, 3], prints, [[8]] * 4)
        steps.append(facts(*pair))
    named = {finding.rule for finding in judged(steps).findings}
    assert ("ddp.duplicate_data" in named) == reported


def test_ranks_that_each_compute_the_same_training_are_information() -> None:
    steps = []
    for number in range(1, 5):
        made = rank(None, number=number, wrapper=None, sync="none", collectives_after=0)
        made.micro_batches[0].fingerprint = 10.5 * number
        made.replica = Replica(1, [0], [1.0 * number], [[8]])
        steps.append(facts(made, made))
    (finding,) = judged(steps).findings
    assert (finding.rule, finding.severity) == ("ddp.duplicate_data", "info")
    assert finding.title == "The ranks compute the same training"


@pytest.mark.parametrize(
    ("other_loss", "kind", "samples", "severity"),
    [
        (0.0, "MseLossBackward0", 8, "error"),
        (0.1, "MseLossBackward0", 8, "info"),  # views of the same samples, or a dropout
        (1e-7, "MseLossBackward0", 8, "error"),  # a rounding error
        (0.1, "NllLossBackward0", 8, "error"),  # of tokens: equal texts are equal data
        (0.1, "GatherBackward0", None, "warning"),  # a cross entropy by hand: of tokens or not
    ],
)
def test_equal_targets_with_other_losses_are_information_unless_they_are_texts(
    other_loss: float, kind: str, samples: int | None, severity: str
) -> None:
    steps = []
    for number in range(1, 21):
        pair = [rank("sync", number=number) for _ in range(2)]
        for index, sent in enumerate(pair):
            sent.micro_batches[0].fingerprint = 10.5 * number
            sent.micro_batches[0].loss = 1.0 + number + other_loss * index
            for each in sent.micro_batches[0].terms:
                each.kind, each.size, each.samples = kind, 64, samples
        steps.append(facts(*pair))
    findings = [f for f in judged(steps).findings if f.rule == "ddp.duplicate_data"]
    assert [f.severity for f in findings] == [severity]


def few_labels(equal_losses: bool) -> Finding | None:
    """Two ranks of one micro-batch in each step, whose few labels are alike in the last three."""
    steps = []
    for number, (one, other) in enumerate([(0, 1), (1, 0)] * 10 + [(0, 0), (1, 1), (2, 2)], 1):
        pair = [rank("sync", number=number) for _ in range(2)]
        for index, (made, fingerprint) in enumerate(zip(pair, (one, other), strict=True)):
            made.micro_batches[0].fingerprint = fingerprint
            made.micro_batches[0].loss = 1.0 + number + (0 if equal_losses else index)
        steps.append(facts(*pair))
    findings = judged(steps).findings
    return next((f for f in findings if f.rule == "ddp.duplicate_data"), None)


def test_equal_fingerprints_of_few_labels_are_chance_unless_losses_are_equal_too() -> None:
    assert few_labels(equal_losses=False) is None
    assert few_labels(equal_losses=True) is not None


def in_pairs(*models: tuple[float, float], data: tuple[float, ...] = (1, 2, 3, 4)) -> str:
    """The answer on DDP over pairs of ranks: what both pairs have for parameters, by step."""
    steps = []
    for number, (one, other) in enumerate(models, start=1):
        sent = [
            rank("sync", number=number, data_group=group, parameters=parameters)
            for group, parameters in (
                ([0, 1], one),
                ([0, 1], one),
                ([2, 3], other),
                ([2, 3], other),
            )
        ]
        for step_record, fingerprint in zip(sent, data, strict=True):
            step_record.micro_batches[0].fingerprint = 10 * number + fingerprint
        steps.append(facts(*sent))
    evaluation = judged(steps)
    assert not [f for f in evaluation.findings if f.rule == DRIFT]
    return evaluation.coverage[DRIFT]


def test_groups_that_start_from_one_model_may_be_one_or_several() -> None:
    unknown = (
        "not_measured: the wrapper combines the gradients of ranks 0, 1 alone; ranks 2, 3, with "
        "other data, started from the same parameters: whether all are meant to be one model, or "
        "are averaged from time to time, is not known"
    )
    assert in_pairs((7.0, 7.0)) == unknown
    assert in_pairs((7.0, 7.0), (7.5, 8.5)) == unknown
    assert in_pairs((7.0, 7.0), (7.5, 8.5), (8.0, 8.0)) == "ok"  # something averages them
    assert in_pairs((7.0, 9.0), (7.5, 8.5)) == "ok"  # an ensemble
    assert in_pairs((7.0, 7.0), (7.5, 8.5), data=(1, 2, 1, 2)) == "ok"  # shards of one model


def shards_in_pairs(*models: tuple[float, float]) -> str:
    """The same under FSDP2, whose ranks hold one shard each: the second, another one."""
    steps = []
    for number, (one, other) in enumerate(models, start=1):
        shards = (one, one + 5, other, other + 6)
        groups = ([0, 1], [0, 1], [2, 3], [2, 3])
        sent = [
            rank("sync", number=number, wrapper="fsdp2", data_group=group, parameters=shard)
            for group, shard in zip(groups, shards, strict=True)
        ]
        for index, step_record in enumerate(sent):
            step_record.sharded = True
            step_record.micro_batches[0].fingerprint = 10 * number + index
        steps.append(facts(*sent))
    return judged(steps).coverage[DRIFT]


def test_groups_of_shards_are_compared_by_their_first_ranks() -> None:
    apart = shards_in_pairs((7.0, 7.0), (7.5, 8.5))
    assert apart.startswith("not_measured: the wrapper combines the gradients of ranks 0, 1 alone")
    assert "ranks 2, with other data" in apart
    assert shards_in_pairs((7.0, 9.0), (7.5, 8.5)).startswith("not_applicable")  # an ensemble


def test_the_verdict_names_the_ranks_of_other_groups() -> None:
    sent = [rank("sync", data_group=group) for group in ([0, 1], [0, 1], [2, 3], [2, 3])]
    for number, step_record in enumerate(sent, start=1):
        step_record.micro_batches[0].fingerprint = number
    assert answer("reduction.token_weights_unequal", facts(*sent)) == (
        "ok: equal weights: cross entropy; not evaluated: ranks 2, 3, with other data and in "
        "another group"
    )


def test_the_first_rank_of_a_group_is_not_compared_with_itself() -> None:
    """Ranks 1 and 3 are the last stages of two pipelines; ranks 0 and 2 have no loss."""
    steps = []
    for number in range(1, 5):
        pair = [rank("sync", number=number, data_group=[1, 3]) for _ in range(2)]
        for offset, step_record in enumerate(pair):
            step_record.micro_batches[0].fingerprint = 10 * number + offset
        earlier = rank("sync", number=number, data_group=[0, 2])
        earlier.micro_batches[0].terms = []
        steps.append(facts(earlier, pair[0], earlier, pair[1]))
    assert not [f for f in judged(steps).findings if f.rule == "ddp.duplicate_data"]


def test_a_micro_batch_without_a_fingerprint_leaves_its_window_out() -> None:
    assert same_data((1, None), (3, 4), (5, 6)) is None


def test_targets_that_the_ranks_gather_show_nothing_of_their_data() -> None:
    steps = []
    for number in range(1, 5):
        step_record = rank("sync", number=number)
        step_record.micro_batches[0].fingerprint = number
        step_record.micro_batches[0].missing["gathered"] = "by a function of the script"
        steps.append(facts(step_record, step_record))
    coverage = judged(steps).coverage["ddp.duplicate_data"]
    assert coverage.startswith("not_measured: the loss is one of features that the ranks gather")


def test_equal_data_are_not_reported_before_three_windows_have_shown_them() -> None:
    prints = [rank("sync") for _ in range(2)]
    for step_record in prints:
        step_record.micro_batches[0].fingerprint = 7
    assert answer("ddp.duplicate_data", facts(*prints)) == "not_measured: needs 3 windows"
    assert answer("ddp.duplicate_data", facts(*[rank("sync")] * 2)) == (
        "not_measured: no fingerprint of the loss targets"
    )


def test_fsdp_without_a_reduced_micro_batch_gives_the_optimizer_nothing() -> None:
    ranks = [rank("no_sync", "no_sync", wrapper="fsdp2", sync="none", empty=True) for _ in "ab"]
    found = finding_of("ddp.never_synced", *ranks)
    assert found is not None
    assert "outside .grad, so the optimizer has none to apply; FSDP adds them" in found.summary
    assert (
        answer("ddp.never_synced", facts(*[rank("no_sync", "sync", wrapper="fsdp2")] * 2)) == "ok"
    )


def test_fsdp_adds_what_was_not_reduced_to_a_later_window() -> None:
    found = finding_of(
        "ddp.wrong_microbatch_synced", *[rank("sync", "no_sync", wrapper="fsdp2")] * 2
    )
    assert found is not None
    assert "until a later window adds them to its own" in found.summary


def test_wrappers_over_other_ranks_are_reported_unless_the_loop_makes_up_for_it() -> None:
    ranks = [rank("sync", divisors=[2.0, 4.0], parameters=value) for value in (1.0, 2.0)]
    found = finding_of("reduction.world_size", *ranks)
    assert found is not None
    assert found.title.startswith("DDP divides the gradients of different parameters")
    for each in ranks:
        each.changed, each.post_factor = True, None
    assert "after the wrapper" in answer("reduction.world_size", facts(*ranks))


@pytest.mark.parametrize(
    ("wrapper", "sync", "text"),
    [(None, "none", "the all-reduce that adds up"), ("ddp", "averaged", "by the world size")],
)
def test_ranks_without_a_wrapper_may_lack_the_all_reduce_of_their_gradients(
    wrapper: str | None, sync: str, text: str
) -> None:
    steps = []
    for number in (1, 2, 3):
        ranks = [rank("sync", number=number, wrapper=wrapper, sync=sync, norm=n) for n in (1, 2)]
        for each in ranks:
            each.micro_batches[0].terms = [term(10, 1 / 20, "sum")]
            each.micro_batches[0].collectives = int(wrapper is not None)
        steps.append(facts(*ranks))
    found = next(f for f in judged(steps).findings if f.rule == "reduction.world_size")
    assert text in found.summary and found.evidence["factor"] == 0.5
    assert ("all_reduce" in found.fix) is (wrapper is None)


@pytest.mark.parametrize("collectives", [0, 4])
def test_an_all_reduce_that_runs_may_end_after_the_step(collectives: int) -> None:
    steps = []
    for number in (1, 2, 3):
        fields: dict[str, Any] = {"wrapper": None, "collectives_after": collectives}
        ranks = [rank("sync", number=number, sync="none", norm=n, **fields) for n in (1, 2)]
        for each in ranks:
            each.micro_batches[0].terms = [term(10, 1 / 20, "sum")]
            each.micro_batches[0].collectives = 0
        steps.append(facts(*ranks))
    found = next(f for f in judged(steps).findings if f.rule == "reduction.world_size")
    assert ("does not wait for it" in found.summary) is bool(collectives)


def test_parameters_that_are_averaged_over_other_ranks_are_no_replicas() -> None:
    ranks = [rank("sync", norm=norm, parameters=norm) for norm in (1.0, 2.0)]
    assert finding_of(DRIFT, *ranks) is not None
    for each in ranks:
        each.missing["replica"] = "averaged over other ranks"
    assert answer(DRIFT, facts(*ranks)) == "not_measured: averaged over other ranks"


@pytest.mark.parametrize(
    ("second", "more", "named"),
    [
        ([1.0, 2.5], {}, True),
        ([1.0, 2.0], {}, False),  # hooks of the parameter average it
        ([1.0, 2.5], {"collectives_after": 1}, False),  # the loop may
        ([1.5, 2.5], {}, False),  # not these alone: another finding
    ],
)
def test_parameters_that_ddp_ignores_by_request_are_named_where_they_drift(
    second: list[float], more: dict[str, Any], named: bool
) -> None:
    steps = []
    for number, prints in ((1, ([1.0, 2.0],) * 2), (2, ([1.0, 2.0], second))):
        replicas = [Replica(2, [0, 1], each, [[4], [4]], ["body", "head"]) for each in prints]
        fields: dict[str, Any] = {"number": number, "excluded": 1, "post_factor": None, **more}
        steps.append(facts(*(rank("sync", replica=replica, **fields) for replica in replicas)))
    found = next((f for f in judged(steps).findings if f.rule == DRIFT), None)
    assert (found is not None and "Ignored by DDP" in found.title) is named
    if named and found is not None:
        assert found.severity == "warning" and found.evidence["parameters"] == ["head [4]"]


@pytest.mark.parametrize(("divisor", "balance"), [(1.0, 2), (2.0, 1), (3.0, 2 / 3)])
def test_the_balance_is_that_of_the_divisor_which_the_wrapper_applied(
    divisor: float, balance: float
) -> None:
    step = facts(*[rank("sync", wrapper="fsdp2", divisors=[divisor])] * 2)
    assert step.ledger is not None
    assert step.ledger.balance == pytest.approx(balance)
    found = next((f for f in judged([step]).findings if f.rule == "reduction.world_size"), None)
    assert (found is None) == (balance == 1)
    if found is not None:
        assert f"divides the sum of the ranks' gradients by {divisor:g};" in found.summary
        assert "this loss needs a division by 2" in found.summary


def test_parameters_that_are_divided_differently_are_reported_and_have_no_balance() -> None:
    step = facts(*[rank("sync", wrapper="fsdp2", divisors=[1.0, 2.0])] * 2)
    assert [f.rule for f in judged([step]).findings] == ["reduction.world_size"]
    assert answer("reduction.missing_division", step).startswith("not_measured: gradients of diff")
    by_zero = facts(*[rank("sync", wrapper="fsdp2", divisors=[1.0, 0.0], outside=1)] * 2)
    assert judged([by_zero]).findings == []
    by_three = facts(*[rank("sync", wrapper="fsdp2", divisors=[1.0, 2.0, 4.0], outside=1)] * 2)
    assert [f.rule for f in judged([by_three]).findings] == ["reduction.world_size"]


def test_fsdp1_that_never_leaves_no_sync_trains_different_models() -> None:
    norms = (1.0, 2.0)
    ranks = [rank("no_sync", "no_sync", wrapper="fsdp", sync="none", norm=norm) for norm in norms]
    found = finding_of("ddp.never_synced", *ranks)
    assert found is not None
    assert "every micro-batch runs under no_sync()" in found.summary
    assert "DDP" not in found.fix
    gathered = [rank(None, None, wrapper="fsdp") for _ in "ab"]  # its flag was not read
    assert finding_of("ddp.never_synced", *gathered) is None


def test_parameters_outside_ddp_that_hooks_may_combine_are_reported_once_they_differ() -> None:
    def answer_of(*norms: float, **fields: Any) -> str:
        return answer(
            "ddp.replica_drift",
            facts(*[rank("sync", sync="averaged", outside=2, norm=n, **fields) for n in norms]),
        )

    assert answer_of(1.0, 1.0) == "ok"
    assert answer_of(1.0, 1.2) == "finding"


def of_idle(weights: tuple[float, ...], *, other: bool = False) -> list[Finding]:
    """Two windows under DDP, in which rank 1 has these token weights; ``other``: another loss."""
    steps = []
    for number in (1, 2):
        kind = {"kind": "MseLossBackward0"} if other else {}
        second = [term(10 if weight else 0, weight, **kind) for weight in weights]
        ranks = [record([term(10, 1 / 20)] * 2, number), record(second, number)]
        for sent in ranks:
            sent.sync = "averaged"
        steps.append(facts(*ranks))
    return [f for f in judged(steps).findings if f.rule == "reduction.balance_off"]


def test_ranks_without_tokens_that_the_average_counts_are_named() -> None:
    (idle,) = of_idle((0.0, 0.0))
    assert (idle.severity, idle.title) == (
        "warning",
        "1 of 2 ranks has no tokens with a weight, and the average counts it",
    )
    (partly,) = of_idle((1 / 20, 0.0))
    assert partly.severity == "info"
    assert partly.title.startswith("1 of the 4 micro-batches of all ranks has no tokens with")
    assert not of_idle((1 / 20, 1 / 20))


@pytest.mark.parametrize(("tokens", "is_named"), [((10, 0, 10), True), ((10, None, 10), False)])
def test_micro_batches_of_one_rank_without_tokens_are_named(
    tokens: tuple[int | None, ...], is_named: bool
) -> None:
    """Not one whose loss is not in sight."""
    steps = [[None if n is None else term(n, n and 1 / 30) for n in tokens] for _ in range(2)]
    sent = [record([t for t in terms if t], number) for number, terms in enumerate(steps, 1)]
    for each in sent:
        if len(each.micro_batches) == 2:
            each.micro_batches.insert(1, MicroBatch())
    findings = judged([facts(each) for each in sent]).findings
    titles = [f.title for f in findings if f.rule == "reduction.balance_off"]
    of_one = "1 of the 3 micro-batches has no tokens with a weight, and the average counts it"
    assert (of_one in titles) == is_named


def test_a_loss_for_each_rank_leaves_none_without_tokens() -> None:
    assert not [f for f in of_idle((1 / 20, 1 / 20), other=True) if f.severity == "warning"]


def of_join(join: str | None, first: float = 1.0, left: float = 1.0) -> EvaluationResult:
    """Two full windows under DDP, and then two in which rank 1 has no more data; the balances."""
    steps = []
    for number in range(1, 5):
        count = 2 if number < 3 else 1
        weight = (first if number < 3 else left) / 10
        ranks = [record([term(10, weight)], number, join=join) for _ in range(count)]
        for sent in ranks:
            sent.sync, sent.wrapper = "averaged", "ddp"
            sent.micro_batches[0].wrapper, sent.micro_batches[0].collectives = "sync", 1
        steps.append(facts(*ranks, world_size=2))
    return judged(steps)


@pytest.mark.parametrize("join", ["all", "active", None])
def test_in_a_join_context_ranks_without_a_record_have_no_more_data(join: str | None) -> None:
    evaluation = of_join(join)
    unmeasured = any("in 2 of 4 windows" in text for text in evaluation.coverage.values())
    assert unmeasured == (join is None)
    findings = [(f.rule, f.severity, f.first_step, f.title) for f in evaluation.findings]
    title = "1 of 2 ranks has no tokens with a weight, and the average counts it"
    assert findings == ([("reduction.balance_off", "info", 3, title)] if join == "all" else [])


def test_a_factor_of_all_ranks_in_a_join_that_divides_by_those_with_data_is_named() -> None:
    (finding,) = of_join("active", left=2.0).findings
    assert (finding.rule, finding.severity, finding.first_step) == (
        "reduction.balance_off",
        "warning",
        3,
    )
    assert "1 of 2 ranks has left the Join context" in finding.summary
    assert "The balance is 2 here and 1 before ranks left" in finding.summary


def test_ranks_that_leave_a_join_one_after_another_show_no_varying_divisor() -> None:
    """Of four ranks, which have data for 2, 4, 6 and 70 steps; a short window comes after them."""
    steps = []
    for number in range(1, 74):
        count = 4 if number in (1, 2, 71, 72, 73) else 3 if number < 5 else 2 if number < 7 else 1
        batches = [[term(10, 4 / count / 20)]] * (1 if number == 73 else 2)
        ranks = [record(batches, number, join="active") for _ in range(count)]
        for sent in ranks:
            sent.sync, sent.wrapper = "averaged", "ddp"
            for batch in sent.micro_batches:
                batch.wrapper = "no_sync"
            sent.micro_batches[-1].wrapper, sent.micro_batches[-1].collectives = "sync", 1
        steps.append(facts(*ranks, world_size=4))
    found = [(f.rule, f.first_step, f.last_step) for f in judged(steps).findings]
    assert found == [("reduction.balance_off", 3, 70), ("reduction.partial_window", 73, 73)]


@pytest.mark.parametrize("before", [1 / 4, 0.37])
def test_a_balance_that_was_off_before_ranks_left_a_join_shows_no_other_divisor(
    before: float,
) -> None:
    steps = []
    for number, count in enumerate((4, 4, 4, 3, 2, 2), 1):
        loss = term(10 + number, before * 4 / count / (10 + number))
        ranks = [record([loss], number, join="active") for _ in range(count)]
        for sent in ranks:
            sent.sync, sent.wrapper = "averaged", "ddp"
            sent.micro_batches[0].wrapper, sent.micro_batches[0].collectives = "sync", 1
        steps.append(facts(*ranks, world_size=4))
    findings = judged(steps).findings
    assert findings and all(finding.last_step < 4 for finding in findings)


@pytest.mark.parametrize(("first", "left"), [(2.0, 2.0), (1.0, 1.5), (2.0, 4.0)])
def test_another_factor_where_ranks_have_left_is_not_one_of_all_ranks(
    first: float, left: float
) -> None:
    titles = [finding.title for finding in of_join("active", first, left).findings]
    assert not any("divides by the ranks that have data left" in title for title in titles)


def test_the_batch_of_a_rank_that_ran_out_of_data_has_not_changed() -> None:
    steps = []
    for number in range(1, 5):
        without, with_data = record([], number), record([term(10, 1 / 10)], number, join="active")
        if number < 3:
            without = record([term(10, 1 / 10)], number, join="active")
        steps.append(facts(without, with_data, world_size=2))
    assert judged(steps).coverage["batch.changed_without_lr"].startswith("not_applicable")


def of_four(counts: tuple[int, ...], applied: tuple[float, ...], **more: Any) -> Finding | None:
    """Ranks that divide their sums by these numbers, under DDP over four ranks."""
    each = zip(counts, applied, strict=True)
    ranks = [record([term(n, 4 / divisor, "sum", **more)]) for n, divisor in each]
    for sent in ranks:
        sent.sync, sent.wrapper = "averaged", "ddp"
        sent.micro_batches[0].wrapper, sent.micro_batches[0].collectives = "sync", 1
    return finding_of("reduction.world_size", *ranks)


def test_what_a_group_of_ranks_counts_is_no_divisor_for_all() -> None:
    neighbours = of_four((10, 12, 7, 8), (22, 22, 15, 15))
    assert neighbours is not None and "2 times too large" in neighbours.title
    assert "each weight is 1 / (what a group of 2 ranks counts)" in neighbours.summary
    assert of_four((10, 12, 7, 8), (17, 20, 17, 20)) is not None  # every other rank
    assert of_four((10, 12, 7, 8), (37, 37, 37, 37)) is None
    assert of_four((10, 12, 10, 12), (22, 22, 22, 22)) is None  # may be a weight of 2


@pytest.mark.parametrize(
    ("multiplier", "divisor", "outer", "named"),
    [
        (2, 37, None, True),
        (4, 37, None, False),
        (2, 10, None, False),
        (2, 37, 0.5, False),  # 0.5 * 4: a weight of 0.5
    ],
)
def test_the_number_of_ranks_in_a_group_undoes_no_average_over_all(
    multiplier: int, divisor: float, outer: float | None, named: bool
) -> None:
    finding = of_four(
        (10, 12, 7, 8),
        (4 * 37 / multiplier,) * 4,
        coefficient=float(multiplier),
        outer_coefficient=outer,
        divisors=[divisor],
    )
    assert (finding is not None) is named
    assert finding is None or "and multiplied by 2, not by 4" in finding.summary


@pytest.mark.parametrize(
    ("divisors", "applied", "coefficient", "named"),
    [
        ([37.0, 4.0], 16 * 37, None, True),
        ([37.0, 4.0], 16 * 37, 0.25, False),  # a weight
        ([37.0, 3.0], 12 * 37, None, False),  # not the number of ranks
        ([10.0, 4.0], 16 * 37, None, False),  # not what all ranks count
    ],
)
def test_what_all_ranks_count_needs_no_division_by_the_ranks_besides(
    divisors: list[float], applied: float, coefficient: float | None, named: bool
) -> None:
    more = {"divisors": divisors, "coefficient": coefficient}
    finding = of_four((10, 12, 7, 8), (applied,) * 4, **more)
    assert (finding is not None) is named
    if finding is not None:
        assert finding.title == "The gradient is 16 times too small: a factor of the world size"
        assert "what all 4 ranks count, and by 4, the number of ranks" in finding.summary
        assert finding.fix.startswith("# Divide the sum")


@pytest.mark.parametrize(
    ("divisor", "rule"), [(48.0, "reduction.world_size"), (None, "reduction.wrong_denominator")]
)
def test_half_of_the_positions_may_have_targets_where_two_ranks_are_averaged_again(
    divisor: float | None, rule: str
) -> None:
    """Of 48 tokens, in batches with 24 positions each."""
    more = {"size": 24, "divisors": [divisor] if divisor else []}
    steps = [
        facts(
            *[
                record(
                    [term(12, 1 / 48, "sum", **more) for _ in range(2)],
                    number,
                    sync="averaged",
                    wrapper="ddp",
                )
                for _ in range(2)
            ]
        )
        for number in (1, 2)
    ]
    assert set(accused(judged(steps))) == {rule}


def test_weights_that_only_depend_on_the_micro_batch_do_not_differ_between_ranks() -> None:
    """The ranks have different numbers of tokens in the micro-batches of one number."""
    ranks = [
        record([term(count, 1 / whole, "sum") for count, whole in counts], sync="averaged")
        for counts in (((10, 15), (10, 45)), ((20, 15), (80, 45)))
    ]
    found = finding_of("reduction.token_weights_unequal", *ranks)
    assert found is not None and found.evidence["differ"] == "between micro-batches"
