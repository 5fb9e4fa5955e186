"""Optimizers of other packages: each closes the windows of its loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import torch
from lion_pytorch import Lion
from prodigyopt import Prodigy
from schedulefree import AdamWScheduleFree, ScheduleFreeWrapper
from torch import nn

from helpers.training import tiny_model, windows
from helpers.updates import recorded_to_the_end
from libraries.watched import assert_closes_its_windows

MAKE: dict[str, Callable[[nn.Module], Any]] = {
    "lion": lambda net: Lion(net.parameters(), lr=1e-3),
    "prodigy": lambda net: Prodigy(net.parameters()),
    "schedule_free": lambda net: AdamWScheduleFree(net.parameters(), lr=1e-3),
    "schedule_free_wrapper": lambda net: ScheduleFreeWrapper(
        torch.optim.SGD(net.parameters(), lr=0.1)
    ),
}


@pytest.mark.parametrize("right", [True, False])
@pytest.mark.parametrize("name", MAKE)
def test_an_optimizer_of_a_package_is_judged(name: str, right: bool) -> None:
    assert_closes_its_windows(tiny_model(), windows(5), MAKE[name], right)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_keras_updates_by_hand(optimizer: str) -> None:
    keras.utils.set_random_seed(0)
    layers = [keras.layers.Dense(16, activation="tanh"), keras.layers.Dense(4)]
    model = keras.Sequential([keras.layers.Input((8,)), *layers])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=optimizer, loss=loss)
    inputs = np.random.randn(64, 8).astype("float32")
    with recorded_to_the_end() as recorded:
        model.fit(inputs, np.random.randint(0, 4, 64), batch_size=16, epochs=2, verbose=0)
    assert len(recorded.records()) == 8
    assert all(record.by_hand for record in recorded.records())
    assert recorded.evaluation().verdict == "balanced"
