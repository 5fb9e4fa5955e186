"""The modes of dropout and batch norm, as the hooks record them at sampled steps."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss

from gradledger.capture.layers.parameter_names import KEEPS_REFERENCED
from gradledger.torch_version import at_least
from helpers.training import recording

pytestmark = pytest.mark.skipif(
    not at_least(KEEPS_REFERENCED), reason="models are not searched for in this version of PyTorch"
)


def modes(
    model: nn.Module, before: Callable[[int], object], after: Callable[[int], object] = bool
) -> dict[int, tuple[int, list[str]]]:
    """By sampled step; ``before`` is called before the forward, ``after`` after the backward."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with recording() as kept:
        for step in range(1, 16):
            before(step)
            optimizer.zero_grad()
            mse_loss(model(torch.randn(8, 4)), torch.zeros(8, 2)).backward()
            after(step)
            optimizer.step()
    records = [step.resolve() for step in kept.steps]
    return {r.step: (r.layers.training, r.layers.evaluating) for r in records if r.layers}


def model_of(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), *layers, nn.Linear(4, 2))


def test_modules_with_two_modes_are_read_in_the_backward() -> None:
    model = model_of(nn.Dropout(0.5), nn.Dropout(0.0), nn.BatchNorm1d(4))
    recorded = modes(model, lambda step: model.train(step < 10))
    trains: tuple[int, list[str]] = (2, [])
    evaluates = (0, ["BatchNorm1d", "Dropout"])
    # at step 1, the model is not known yet
    assert recorded == {1: (0, []), 2: trains, 3: trains, 5: trains, 10: evaluates, 15: evaluates}


def test_the_modes_of_the_first_step_of_a_model_that_the_optimizer_names() -> None:
    with recording() as kept:
        model = model_of(nn.Dropout(0.5))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            mse_loss(model(torch.randn(8, 4)), torch.zeros(8, 2)).backward()
            optimizer.step()
            model.eval()
    layers = [layers for step in kept.steps if (layers := step.resolve().layers)]
    assert [each.training for each in layers] == [1, 0, 0]
    assert [each.evaluating for each in layers] == [[], ["Dropout"], ["Dropout"]]


def test_a_validation_between_backward_and_step_does_not_count() -> None:
    model = model_of(nn.Dropout(0.5))
    recorded = modes(model, lambda _: model.train(), lambda _: model.eval())
    assert recorded[10] == recorded[15] == (1, [])


def test_a_part_in_evaluation_mode_is_frozen_on_purpose() -> None:
    model = model_of(nn.BatchNorm1d(4))
    recorded = modes(model, lambda step: model.get_submodule("1").train(step < 10))
    assert recorded[10] == recorded[15] == (1, [])


def test_of_two_models_one_that_trains_leaves_no_modes() -> None:
    backbone, head = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)).eval(), nn.Linear(4, 2)
    optimizer = torch.optim.SGD([*backbone.parameters(), *head.parameters()], lr=0.1)
    with recording() as kept:
        for step in range(1, 6):
            head.train(step < 5)
            optimizer.zero_grad()
            mse_loss(head(backbone(torch.randn(8, 4))), torch.zeros(8, 2)).backward()
            optimizer.step()
    layers = {step.resolve().step: step.resolve().layers for step in kept.steps}
    evaluating = [each.evaluating for each in layers.values() if each]
    assert evaluating == [[], [], [], ["Dropout"]]


class DropPath(nn.Dropout):
    """Dropout of the script."""


def test_a_class_of_the_script_is_named_by_what_it_is_derived_from() -> None:
    model = model_of(DropPath(0.5))
    assert modes(model, lambda step: model.train(step < 10))[15] == (0, ["Dropout"])


def test_a_model_without_such_modules_has_no_modes() -> None:
    model = model_of(nn.LayerNorm(4), nn.BatchNorm1d(4, track_running_stats=False))
    recorded = modes(model, lambda _: model.eval())
    assert all(of_step == (0, []) for of_step in recorded.values())
