"""The accumulation of open_clip: each micro-batch has the loss of the whole window.

The features of the other micro-batches are constants in it. The gradient of the features is exact;
that of the temperature, which is in each of the K losses, is K times too large.
"""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from helpers.training import Recording, accused, recording
from libraries.torchvision_import import import_torchvision
from libraries.watched import Steps, compared

import_torchvision()
open_clip: Any = pytest.importorskip("open_clip")
training: Any = pytest.importorskip("open_clip_train.train")

K, BATCH, STEPS, WIDTH = 4, 5, 3, 8
ARGUMENTS = {
    "device": "cpu",
    "precision": "fp32",
    "skip_scheduler": True,
    "distill": False,
    "accum_freq": K,
    "horovod": False,
    "grad_clip_norm": None,
    "log_every_n_steps": 100,
    "rank": 0,
    "local_rank": 0,
    "world_size": 1,
    "batch_size": BATCH,
    "wandb": False,
    "distributed": False,
}


class Towers(nn.Module):
    """Two projections and a temperature."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.image, self.text = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.logit_scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, images: Tensor, texts: Tensor) -> dict[str, Tensor]:
        return {
            "image_features": F.normalize(self.image(images), dim=-1),
            "text_features": F.normalize(self.text(texts), dim=-1),
            "logit_scale": self.logit_scale.exp(),
        }


class Pairs(list[tuple[Tensor, Tensor]]):
    """Random micro-batches, with what the training reads of a loader."""

    num_batches, num_samples = K * STEPS, K * STEPS * BATCH


def test_the_loss_of_a_window_in_each_micro_batch() -> None:
    model, recorded = Towers(), Recording()
    pairs = Pairs((torch.randn(BATCH, WIDTH), torch.randn(BATCH, WIDTH)) for _ in range(K * STEPS))
    loss, steps = open_clip.ClipLoss(), Steps(model)
    with recording(recorded):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        steps.attach(optimizer)
        data = {"train": SimpleNamespace(set_epoch=lambda epoch: None, dataloader=pairs)}
        arguments = SimpleNamespace(**ARGUMENTS)
        training.train_one_epoch(model, data, loss, 0, optimizer, None, None, None, arguments)

    for step in range(STEPS):
        window = pairs[K * step : K * (step + 1)]
        images, texts = (torch.cat(parts) for parts in zip(*window, strict=True))
        whole = partial(lambda images, texts: loss(**model(images, texts)), images, texts)
        applied, true = steps.gradients[step], steps.true_gradient(step, whole)
        assert float(applied[0] / true[0]) == pytest.approx(K, rel=1e-3)  # the temperature
        assert compared(applied[1:], true[1:]).is_true()

    evaluation = recorded.evaluation()
    assert (accused(evaluation), evaluation.verdict) == ({}, "balanced")
    reasons = [str(node.reason) for node in evaluation.tree if node.node == "reduction"]
    assert "such as a temperature" in reasons[0]
