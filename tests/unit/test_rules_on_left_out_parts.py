"""Parts of a training that are left out: of the model, of the loss, of the batches."""

from __future__ import annotations

from typing import Any

import pytest

from gradledger.records import Layers, MicroBatch, StepRecord, Unheld
from gradledger_monitor.model.findings import Finding
from helpers.facts import facts, judged, record, term


def finding_of(rule: str, *windows: StepRecord, **run: Any) -> Finding | None:
    evaluation = judged([facts(window, **run) for window in windows])
    return next((f for f in evaluation.findings if f.rule == rule), None)


# ---------------------------------------------------------------------- parameters in no optimizer


def layers(*names: str, without: tuple[str, ...] = ()) -> Layers:
    """Layers of the optimizer; some of them have no gradient."""
    gradients = [None if name in without else 1.0 for name in names]
    count = len(names)
    return Layers(
        names=list(names),
        sizes=[8.0] * count,
        gradient=gradients,
        parameter=[1.0] * count,
        update=[0.01] * count,
    )


def unheld(found: Unheld | None, held: Layers | None = None) -> Finding | None:
    window = record([term(8, 1 / 8)], 10, layers=held or layers("a"), unheld=found)
    return finding_of("loop.unheld_parameters", window)


def test_parameters_that_no_optimizer_holds_are_information() -> None:
    finding = unheld(Unheld(1, 8.0, ["body.weight"]))
    assert finding is not None and finding.severity == "info"
    assert finding.title == "1 parameter with gradients is in no optimizer"
    assert finding.summary == (
        "body.weight got gradients, and no optimizer of the process holds it. The values have not "
        "changed. The optimizer may have been created with a part of the model, or before they "
        "were, as adapters may be. If they should not be trained, requires_grad_(False) saves "
        "their backward."
    )
    assert unheld(None) is None


def test_those_in_a_list_or_of_a_part_that_was_replaced_are_a_warning() -> None:
    listed = unheld(Unheld(2, 16.0, ["blocks[0].weight", "blocks[0].bias"], [0, 1]))
    assert listed is not None and listed.severity == "warning"
    assert "They are in a Python list or dictionary of the model" in listed.summary
    orphan = layers("a", "parameter 4", without=("parameter 4",))
    replaced = unheld(Unheld(1, 8.0, ["head.weight"]), orphan)
    assert replaced is not None and replaced.severity == "warning"
    assert "SGD holds 1 parameter that the model does not contain" in replaced.summary
    trained = unheld(Unheld(1, 8.0, ["head.weight"]), layers("a", "parameter 4"))
    assert trained is not None and trained.severity == "info"  # something uses it


def test_a_part_that_was_replaced_later_keeps_its_name_in_the_optimizer() -> None:
    replaced = unheld(Unheld(1, 8.0, ["head.weight"]), layers("body.weight", "head.weight"))
    assert replaced is not None and replaced.severity == "warning"
    assert "a part of it was replaced" in replaced.summary


def test_an_optimizer_of_frozen_parameters_that_lacks_the_trained_ones_is_a_warning() -> None:
    """Adapters that are added after the optimizer was created."""
    held = layers("head.weight")
    held.frozen = 33
    adapters = unheld(Unheld(2, 16.0, ["body.A", "body.B"]), held)
    assert adapters is not None and adapters.severity == "warning"
    assert "SGD holds 33 parameters that require no gradient, and not these" in adapters.summary


def test_what_was_unfrozen_for_the_training_is_a_warning() -> None:
    unfrozen = unheld(Unheld(2, 16.0, ["body.weight", "body.bias"], unfrozen=[0, 1]))
    assert unfrozen is not None and unfrozen.severity == "warning"
    assert "Earlier in the run, 2 of them required no gradient." in unfrozen.summary


def test_weights_of_a_loss_in_no_optimizer_are_information() -> None:
    held = layers("a", "parameter 4")
    held.frozen, held.gradient[1] = 3, None  # another part of the optimizer has no gradient
    loss = unheld(Unheld(1, 2.0, ["Uncertainty.log_vars"], apart=[0]), held)
    assert loss is not None and loss.severity == "info"
    assert "It is in no model whose parameters SGD holds" in loss.summary
    assert "*criterion.parameters()" in loss.fix
    several = unheld(Unheld(2, 4.0, ["Loss.a", "Loss.b"], apart=[0, 1]), held)
    assert several is not None and "They are in no model whose" in several.summary
    part = unheld(Unheld(3, 6.0, ["b", "Loss.a", "c"], apart=[1]), held)
    assert part is not None and "1 of them is in no model whose" in part.summary
    again = unheld(Unheld(1, held.sizes[1], ["Linear.weight"], apart=[0]), held)
    assert again is not None and again.severity == "warning"  # the optimizer holds an earlier one


def test_many_are_counted() -> None:
    finding = unheld(Unheld(100, 800.0, [f"p{index}" for index in range(64)]))
    assert finding is not None
    assert finding.summary.startswith("p0, p1, p2, p3, p4, p5 and 94 more got gradients")


# ---------------------------------------------------------------------- a part of the loss


def losses(*parts: float | None, loss: float = 2.0, scale: float | None = None) -> list[StepRecord]:
    """Windows of one micro-batch, of whose loss a part has no gradient."""
    windows = []
    for number, part in enumerate(parts, 1):
        window = record([term(8, (scale or 1.0) / 8)], number)
        micro_batch: MicroBatch = window.micro_batches[0]
        micro_batch.number, micro_batch.loss = number, loss * (scale or 1.0)
        micro_batch.without_gradient = None if part is None else part * (scale or 1.0)
        micro_batch.scale = scale
        windows.append(window)
    return windows


def part(*parts: float | None, **more: Any) -> Finding | None:
    return finding_of("loss.part_without_gradient", *losses(*parts, **more))


VARIES = [0.5 + 0.01 * number for number in range(8)]


def test_a_part_that_varies_is_information_with_its_share() -> None:
    finding = part(*VARIES)
    assert finding is not None and finding.severity == "info"
    assert finding.summary == (
        "In the first 8 micro-batches, 26.8% of the loss came from numbers or detached tensors: "
        "between 0.5 and 0.57, where the loss was 2 in the median. Nothing is trained on this part."
    )
    assert part(*VARIES[:7]) is None  # fewer are not enough
    few = [facts(step) for step in losses(*VARIES[:7], *[None] * 9)]
    reason = judged(few).coverage["loss.part_without_gradient"]
    assert reason.endswith("needs a part without a gradient in 8 of the first 16 micro-batches")
    scaled = part(*VARIES, scale=1024.0)
    assert scaled is not None and scaled.summary == finding.summary


def test_a_constant_a_small_part_and_none_are_no_finding() -> None:
    assert part(*[0.5] * 8) is None
    assert part(*[0.5 + 1e-6 * number for number in range(8)]) is None  # rounding of the loss
    assert part(*[0.001 * number for number in range(8)]) is None
    assert part(*[None] * 8) is None


# ---------------------------------------------------------------------- batches


def drawn(*counts: int, backwards: int = 1) -> list[StepRecord]:
    """Windows that drew so many batches, the first of which counts for nothing."""
    return [
        record([term(8, 1 / 8)] * backwards, number, batches=count)
        for number, count in enumerate((backwards, *counts), 1)
    ]


def dropped(*counts: int, **more: Any) -> Finding | None:
    return finding_of("loop.dropped_windows", *drawn(*counts, **more))


def test_batches_without_a_backward_are_information() -> None:
    finding = dropped(*[3, 1, 4] * 4)
    assert finding is not None and finding.severity == "info"
    assert finding.summary == (
        "20 of the 32 batches that the last 12 windows drew were followed by no backward, so they "
        "trained nothing. A guard in the loop may leave them out."
    )


@pytest.mark.parametrize(
    "counts",
    [
        [2] * 20,  # each backward takes two
        [1] * 20 + [16],  # once, such as an evaluation
        [1] * 50 + [4, 4, 4],  # few of many
    ],
)
def test_batches_that_may_be_used_are_no_finding(counts: list[int]) -> None:
    assert dropped(*counts) is None


# ---------------------------------------------------------------------- the end of an epoch


def after_a_discard(data: list[float]) -> Finding | None:
    """Windows of two micro-batches; before the last window, a third one was zeroed."""
    windows = []
    for number in range(1, len(data) // 2 + 1):
        held = data[2 * number - 2 : 2 * number]
        is_last = 2 * number == len(data)
        window = record([term(8, 1 / 16)] * (2 + is_last), number)
        for batch, fingerprint in zip(window.micro_batches, [-1.0] * is_last + held, strict=True):
            batch.fingerprint, batch.fresh = fingerprint, fingerprint in (-1.0, held[0])
        windows.append(window)
    return finding_of("loop.discarded_microbatches", *windows)


def test_what_is_discarded_before_the_data_begins_anew_is_the_tail_of_an_epoch() -> None:
    tail = after_a_discard([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 1.0, 2.0])
    assert tail is not None and tail.severity == "warning"
    other = after_a_discard([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0])  # by a guard
    assert other is not None and other.severity == "info"
    often = after_a_discard([1.0, 2.0, 1.0, 2.0, 5.0, 6.0, 1.0, 2.0])
    assert often is not None and often.severity == "info"
