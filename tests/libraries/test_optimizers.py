"""Optimizers of other packages: each closes the windows of its loop."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import keras
import numpy as np
import pytest
import pytorch_optimizer
import torch
from lion_pytorch import Lion
from prodigyopt import Prodigy
from schedulefree import AdamWScheduleFree, ScheduleFreeWrapper
from torch import nn

from gradledger_monitor.rules.gradient_scale_effects import optimizer_response
from helpers.training import accused, tiny_model, windows
from helpers.updates import recorded_to_the_end
from libraries.watched import assert_closes_its_windows

COLLECTION = ("SOAP", "AdaBelief", "Adan", "CAME", "Lamb", "Lion", "ScheduleFreeAdamW", "Tiger")


def _of_collection(name: str, net: nn.Module) -> Any:
    return getattr(pytorch_optimizer, name)(net.parameters(), lr=1e-3)


MAKE: dict[str, Callable[[nn.Module], Any]] = {
    "lion": lambda net: Lion(net.parameters(), lr=1e-3),
    "prodigy": lambda net: Prodigy(net.parameters()),
    "schedule_free": lambda net: AdamWScheduleFree(net.parameters(), lr=1e-3),
    "schedule_free_wrapper": lambda net: ScheduleFreeWrapper(
        torch.optim.SGD(net.parameters(), lr=0.1)
    ),
    "muon": lambda net: torch.optim.Muon(_matrices(net), lr=1e-3),
    "lookahead": lambda net: pytorch_optimizer.Lookahead(
        torch.optim.SGD(net.parameters(), lr=0.1), k=2
    ),
    **{name: partial(_of_collection, name) for name in COLLECTION},
}


def _matrices(net: nn.Module) -> list[nn.Parameter]:
    """Muon is for matrices alone; the vectors are not trained."""
    for parameter in net.parameters():
        parameter.requires_grad_(parameter.dim() == 2)
    return [parameter for parameter in net.parameters() if parameter.requires_grad]


@pytest.mark.parametrize("right", [True, False])
@pytest.mark.parametrize("name", MAKE)
def test_an_optimizer_of_a_package_is_judged(name: str, right: bool) -> None:
    assert_closes_its_windows(tiny_model(), windows(5), MAKE[name], right)


@pytest.mark.parametrize("steps", [None, 4])
@pytest.mark.parametrize("make", [keras.optimizers.SGD, keras.optimizers.AdamW])
@pytest.mark.parametrize("divided", [False, True])
def test_steps_of_keras_are_judged(
    make: Callable[..., Any], steps: int | None, divided: bool
) -> None:
    keras.utils.set_random_seed(0)
    layers = [keras.layers.Dense(16, activation="tanh"), keras.layers.Dense(4)]
    model = keras.Sequential([keras.layers.Input((8,)), *layers])
    entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def loss(labels: Any, outputs: Any) -> Any:
        return entropy(labels, outputs) / (4 if divided else 1)

    model.compile(optimizer=make(1e-2, gradient_accumulation_steps=steps, clipnorm=0.1), loss=loss)
    inputs = np.random.randn(64, 8).astype("float32")
    with recorded_to_the_end() as recorded:
        model.fit(inputs, np.random.randint(0, 4, 64), batch_size=16, epochs=4, verbose=0)
    records, evaluation = recorded.records(), recorded.evaluation()
    assert [len(record.micro_batches) for record in records] == [steps or 1] * (16 // (steps or 1))
    assert not any(record.by_hand for record in records)
    divisor = "reduction.double_division" if steps else "loop.step_every_microbatch"
    assert set(accused(evaluation)) == ({divisor} if divided else set())


# Of other packages, those for which a statement on a factor of the gradients is made: none changes
# the update, as the signs or the sizes of the gradients are divided out.
CLAIMED: dict[str, Callable[[nn.Module], Any]] = {
    "lion": lambda net: Lion(net.parameters(), lr=1e-3),
    "lion_of_collection": lambda net: pytorch_optimizer.Lion(net.parameters(), lr=1e-3),
    "lamb": lambda net: pytorch_optimizer.Lamb(net.parameters(), lr=1e-3, max_grad_norm=0.0),
    "muon": lambda net: torch.optim.Muon(_matrices(net), lr=1e-3),
}


@pytest.mark.parametrize("name", CLAIMED)
def test_a_factor_on_all_gradients_changes_no_update(name: str) -> None:
    def trained(factor: float) -> list[torch.Tensor]:
        net = tiny_model()
        optimizer = CLAIMED[name](net)
        assert optimizer_response(type(optimizer).__name__) not in (None, "proportional")
        generator = torch.Generator().manual_seed(0)
        for _ in range(6):
            for parameter in net.parameters():
                if parameter.requires_grad:
                    noise = torch.randn(parameter.shape, generator=generator)
                    parameter.grad = noise * factor
            optimizer.step()
        return [parameter.detach() for parameter in net.parameters()]

    start = nn.utils.parameters_to_vector(tiny_model().parameters()).detach()
    once, fourfold = (nn.utils.parameters_to_vector(trained(factor)) for factor in (1.0, 4.0))
    assert float((once - fourfold).norm() / (once - start).norm()) < 1e-2  # their epsilons
