"""A loss of TorchScript, which hides a part of its graph once it has optimized it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from helpers.loops import answer, count, train
from helpers.training import IGNORED, windows

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
UNEQUAL = "reduction.token_weights_unequal"


def masked_sum(logits: Tensor, labels: Tensor, ignored: int) -> Tensor:
    logs = torch.log_softmax(logits, -1)
    picked = logs.gather(-1, labels.clamp_min(0).unsqueeze(-1)).squeeze(-1)
    return -(picked * (labels != ignored)).sum()


def masked_mean(logits: Tensor, labels: Tensor, ignored: int) -> Tensor:
    return masked_sum(logits, labels, ignored) / (labels != ignored).sum()


@pytest.mark.parametrize("right", [True, False])
@pytest.mark.parametrize("scripted", [True, False])
def test_what_torchscript_hides_is_not_measured(scripted: bool, right: bool) -> None:
    function = masked_sum if right else masked_mean
    loss_of = torch.jit.script(function) if scripted else function
    recorded = train(
        lambda model, batch, window: (
            loss_of(model(batch[0]).flatten(0, 1), batch[1].flatten(), IGNORED)
            / (count(window) if right else len(window))
        ),
        windows(6),
    )
    if not scripted:
        assert answer(recorded)[1] == ("balanced" if right else "broken")
        return
    assert answer(recorded) == ({}, "incomplete")
    assert "PYTORCH_JIT=0" in recorded.evaluation().coverage[UNEQUAL]
    hidden = recorded.records()[-1].micro_batches[-1].terms[0]
    assert hidden.tokens is hidden.weight is None
