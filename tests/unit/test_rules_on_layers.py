"""Layers without a gradient: which are reported, how, and which may be as intended."""

from __future__ import annotations

import math
from typing import Any

import pytest

from gradledger.records import Layers
from gradledger_monitor.model.findings import EvaluationResult, Finding
from helpers.facts import facts, judged, record, term

DEAD = "norm.dead_layer"


def measured(
    gradients: dict[str, float | None], untrained: tuple[str, ...] = (), **more: Any
) -> Layers:
    """Layers with these gradients."""
    names = list(gradients)
    count = len(names)
    known: dict[str, Any] = {"observed": 30, "parameters": count, **more}
    return Layers(
        names=names,
        sizes=[8.0] * count,
        gradient=list(gradients.values()),
        parameter=[1.0] * count,
        update=[0.01] * count,
        untrained=[names.index(name) for name in untrained],
        **known,
    )


def evaluated(*ranks: Layers | None, **run: Any) -> EvaluationResult:
    """The evaluation of one step with these layers, by rank."""
    steps = [record([term(8, 1 / 8)], 30, layers=layers) for layers in ranks]
    return judged([facts(*steps, **run)])


def dead(*ranks: Layers | None, **run: Any) -> Finding | None:
    """What is reported of them."""
    return next((f for f in evaluated(*ranks, **run).findings if f.rule == DEAD), None)


def test_layers_that_no_gradient_reached_and_those_with_one_of_0_are_told_apart() -> None:
    layers = {"a": None, "b": 0.0, "c": 1.0}
    finding = dead(measured(layers, ("a", "b"), observed=45))
    assert finding is not None and finding.severity == "info"
    assert finding.title == "2 layers of 3 had no gradient at the steps"
    assert finding.summary == (
        "At none of the 45 sampled steps was there a gradient of a. The gradient of b was "
        "exactly 0 at each of the 45 sampled steps. SGD holds them."
    )
    assert finding.evidence["without_gradient"] == ["a"]
    assert finding.evidence["zero_gradient"] == ["b"]


def test_many_layers_are_counted() -> None:
    names = tuple(f"blocks.{index}.weight" for index in range(70))
    finding = dead(measured({**dict.fromkeys(names), "head": 1.0}, names))
    assert finding is not None
    assert "a gradient of blocks.0.weight" in finding.summary
    assert "blocks.5.weight and 64 more." in finding.summary
    assert len(finding.evidence["without_gradient"]) == 64


CONSTANT = measured({"0.weight": 0.0, "1.weight": 0.0, "1.bias": 1.0}, ("0.weight", "1.weight"))


def test_a_model_of_which_only_biases_learn_is_a_constant() -> None:
    finding = dead(CONSTANT)
    assert finding is not None and finding.severity == "warning"
    assert finding.title == "The output of the model does not depend on its input"
    assert finding.summary == (
        "Only 1.bias has a gradient. That of all other layers (0.weight, 1.weight) was exactly 0 "
        "at each of the 30 sampled steps."
    )


@pytest.mark.parametrize(
    "layers",
    [
        measured({"0.weight": 0.0, "1.bias": 1.0}, ("0.weight",), frozen=1),  # may carry the input
        measured({"0.weight": None, "1.bias": 1.0}, ("0.weight",)),  # may have been cut off
        measured({"0.weight": 0.0, "1.gain": 1.0}, ("0.weight",)),  # a factor
        measured({"0.weight": 0.0, "1.weight": 0.0, "1.bias": 1.0}, ("0.weight",)),  # was trained
    ],
)
def test_other_layers_may_pass_the_input_on(layers: Layers) -> None:
    finding = dead(layers)
    assert finding is not None and finding.severity == "info"


def test_the_weights_may_belong_to_another_optimizer() -> None:
    finding = dead(CONSTANT, optimizers=["SGD", "AdamW"])
    assert finding is not None and finding.severity == "info"


ADAPTER: dict[str, float | None] = {"a.lora_A": 0.0, "head": 1.0}


def test_a_layer_beside_a_frozen_matrix_of_zeros_never_gets_a_gradient() -> None:
    finding = dead(measured(ADAPTER, ("a.lora_A",), frozen_zeros={"a.lora_A": "a.lora_B"}))
    assert finding is not None and finding.severity == "warning"
    assert finding.title == "1 layer beside a frozen matrix of zeros has no gradient"
    assert finding.summary == (
        "The gradient of a.lora_A was exactly 0 at each of the 30 sampled steps. Beside it, "
        "a.lora_B is frozen (requires_grad is False), and all values of it are 0: a factor of 0 "
        "that is not trained leaves what it multiplies without a gradient."
    )
    assert finding.evidence["frozen_zeros"] == ["a.lora_B"]
    assert finding.fix.endswith("requires_grad_(True) on:\n# a.lora_B")


@pytest.mark.parametrize("elsewhere", [0.0, None])
def test_a_dead_layer_beside_no_frozen_matrix_has_another_cause(elsewhere: float | None) -> None:
    layers = {**ADAPTER, "gate.weight": elsewhere}
    finding = dead(
        measured(layers, ("a.lora_A", "gate.weight"), frozen_zeros={"a.lora_A": "a.lora_B"})
    )
    assert finding is not None and finding.severity == "info"
    assert "frozen" not in finding.summary


def test_a_dead_bias_beside_a_layer_that_a_factor_of_0_explains_has_the_same_cause() -> None:
    layers = {**ADAPTER, "a.lora_A.bias": 0.0}
    finding = dead(
        measured(layers, ("a.lora_A", "a.lora_A.bias"), frozen_zeros={"a.lora_A": "a.lora_B"})
    )
    assert finding is not None and finding.severity == "warning"
    assert finding.evidence["zero_gradient"] == ["a.lora_A"]


def test_a_layer_that_no_gradient_reaches_has_another_cause_than_a_factor_of_0() -> None:
    layers = {**ADAPTER, "a.lora_A": None}
    finding = dead(measured(layers, ("a.lora_A",), frozen_zeros={"a.lora_A": "a.lora_B"}))
    assert finding is not None and finding.severity == "info"


@pytest.mark.parametrize("name", ["2.weight", "2.parametrizations.weight.original"])
@pytest.mark.parametrize(
    ("bias", "weight", "reported"),
    [(0.0, 1.0, False), (None, 1.0, True), (0.0, 0.0, True)],  # of a module that is cut off
)
def test_a_bias_that_a_loss_on_differences_cancels_is_no_dead_layer(
    bias: float | None, weight: float, reported: bool, name: str
) -> None:
    """A ranking loss, or the critic of a GAN, does not change with the bias of the last layer."""
    untrained = ("2.bias",) if weight else ("2.bias", name)
    layers = {"0.weight": 1.0, "0.bias": 1.0, name: weight, "2.bias": bias}
    assert (dead(measured(layers, untrained)) is not None) == reported


NOTHING = measured({"a": 0.0, "b": 0.0}, ("a", "b"))


def of_norm(norm: float, post_factor: float | None = None, **run: Any) -> Finding | None:
    """What is reported of layers whose gradients are all 0, with this norm of all parameters."""
    step = record([term(8, 1 / 8)], 30, layers=NOTHING, norm=norm, post_factor=post_factor)
    return next((f for f in judged([facts(step, **run)]).findings if f.rule == DEAD), None)


def test_gradients_that_are_all_0_train_nothing() -> None:
    finding = of_norm(0.0)
    assert finding is not None and finding.severity == "info"  # rewards may not have come yet
    assert finding.title == "All gradients are 0"
    assert finding.summary == (
        "The gradient of a, b was exactly 0 at each of the 30 sampled steps: the loss trains "
        "nothing at them. It may be 0 by design at first, as with rewards that do not come yet, or "
        "a weight that increases later."
    )
    assert of_norm(1.0) is None  # of a parameter that is not among the layers
    assert of_norm(0.0, optimizers=["SGD", "AdamW"]) is None  # it may wait for the other one
    assert of_norm(0.0, post_factor=0.0) is None  # the loop set them to 0, not the loss


@pytest.mark.parametrize(
    "ranks",
    [
        [measured({"a": None, "b": 1.0})],  # it had a gradient before
        [measured({"a": None, "b": None}, ("a", "b"))],  # nothing has one: the optimizer waits
        [measured({"a": None, "b": 1.0}, ("a",)), measured({"a": 1.0, "b": 1.0})],
    ],
)
def test_what_had_a_gradient_somewhere_is_not_reported(ranks: list[Layers]) -> None:
    result = evaluated(*ranks)
    assert result.coverage[DEAD] == "ok"


def test_the_reason_where_nothing_is_judged() -> None:
    early = measured({"a": None, "b": 1.0}, ("a",), observed=19)
    assert evaluated(early).coverage[DEAD] == "not_measured: needs 20 sampled steps"
    few = "not_applicable: layers are measured at a few steps"
    assert evaluated(None).coverage[DEAD] == few
    assert evaluated(early, None).coverage[DEAD] == few
    by_hand = facts(record([term(8, 1 / 8)], 30, by_hand=True))
    assert (
        judged([by_hand]).coverage[DEAD] == "not_measured: the loop updates the parameters itself"
    )
    complete = measured({"a": None, "b": 1.0}, ("a",))
    assert "rank 1" in evaluated(complete, world_size=2).coverage[DEAD]


# ---------------------------------------------------------------- vanishing by depth

VANISHING = "norm.vanishing_by_depth"


def deep(
    gradients: list[float | None],
    updates: list[float],
    name: str = "layers.{}.up.weight",
    sizes: list[float] | None = None,
) -> Layers:
    """A stack of layers, and a head that belongs to none."""
    count = len(gradients)
    return Layers(
        parameters=count + 1,
        observed=1,
        names=[*(name.format(index) for index in range(count)), "head.weight"],
        sizes=[*(sizes or [64.0] * count), 8.0],
        gradient=[*gradients, 1.0],
        parameter=[2.0] * (count + 1),
        update=[*updates, 0.01],
    )


FALLING: list[float | None] = [1e-9, 1e-7, 1e-5, 1e-3]
MOVED = [1e-8, 1e-6, 1e-4, 2e-2]


def vanishing(layers: Layers, steps: int = 5) -> EvaluationResult:
    """The evaluation of steps with these layers."""
    return judged([facts(record([term(8, 1 / 8)], n, layers=layers)) for n in range(1, steps + 1)])


def test_a_gradient_and_updates_that_fall_towards_the_first_layer() -> None:
    result = vanishing(deep(FALLING, MOVED))
    finding = next(f for f in result.findings if f.rule == VANISHING)
    assert (finding.severity, finding.first_step, finding.steps) == ("warning", 1, 5)
    assert finding.summary == (
        "At each of the last 5 measured steps, the gradient falls over 4 layers: its RMS is now "
        "0.001 in layers.3.up.weight and 1e-09 in layers.0.up.weight. Relative to its parameters, "
        "the step changed the last one by 0.01 and the first one by 5e-09."
    )
    assert finding.evidence["gradients"] == FALLING


def test_gradients_too_small_for_a_number_come_first() -> None:
    result = vanishing(deep([0.0, 0.0, *FALLING], [0.0, 0.0, *MOVED]))
    assert VANISHING in {f.rule for f in result.findings}


@pytest.mark.parametrize(
    "layers",
    [
        deep([1e-6, 1e-5, 1e-4, 5e-3], MOVED),  # not far enough
        deep(FALLING, [1e-2] * 4),  # an adaptive optimizer
        deep(FALLING, [0.0] * 4),  # a learning rate of 0
        deep(FALLING[::-1], MOVED),  # towards the last one
        deep([1e-9, None, 1e-5, 1e-3], MOVED),  # one has no gradient
        deep([1e-9, 0.0, 1e-7, 1e-5, 1e-3], [0.0, *MOVED]),  # an expert without tokens
        deep([0.0, 0.0, 1e-5, 1e-3], MOVED),  # two layers are no series
        deep([1e-9, 1e-7, 1e-5, 1e-3, math.inf], [*MOVED, 1.0]),
        deep([1e-9, 1e-3, 1e-8, 1e-3, 1e-9, 1e-3], [0.0, 0.0, *MOVED]),  # up and down
    ],
)
def test_other_courses_are_not_reported(layers: Layers) -> None:
    assert vanishing(layers).coverage[VANISHING] == "ok"


def test_it_must_last() -> None:
    coverage = vanishing(deep(FALLING, MOVED), steps=4).coverage
    assert coverage[VANISHING] == "not_measured: needs 5 measured steps in a row"


@pytest.mark.parametrize(
    "layers",
    [
        deep(FALLING, MOVED, "layers.{}.bias"),
        deep(FALLING, MOVED, "layer{}.weight"),
        deep(FALLING, MOVED, sizes=[64.0, 64.0, 64.0, 32.0]),
        deep(FALLING[1:], MOVED[1:]),
    ],
)
def test_layers_that_are_no_stack_cannot_be_compared(layers: Layers) -> None:
    reason = "not_applicable: fewer than 4 layers of one kind follow each other"
    assert vanishing(layers).coverage[VANISHING] == reason
