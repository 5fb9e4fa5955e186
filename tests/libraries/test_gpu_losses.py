"""Cross entropies for GPUs, in their real source: judged right."""

from __future__ import annotations

import pytest

from helpers.projected import LOOPS
from libraries.gpu_losses import FUNCTIONS, SELECTED, SOURCES, judged, verdicts

pytestmark = pytest.mark.skipif(not SOURCES.is_dir(), reason="the sources are not installed")

NODES = {
    "flash_attn": "NllLoss:CrossEntropyLossBackward",
    "megatron": "_VocabParallelCrossEntropyBackward",  # its rows with a gradient show the tokens
    "torchtitan": "NllLoss:_LossParallelCrossEntropyBackward",
    "unsloth": "NllLoss:Fast_CrossEntropyLossBackward",
}


@pytest.mark.parametrize("function", NODES)
def test_a_loss_of_logits_is_judged_right(function: str) -> None:
    assert judged(function) == [NODES[function]] * len(LOOPS)


@pytest.mark.parametrize("function", SELECTED)
def test_a_loss_of_a_projection_is_judged_right(function: str) -> None:
    for kind in judged(function):
        assert function in kind
        assert kind.startswith("NllLoss:")


def test_a_gradient_in_bf16_changes_no_verdict() -> None:
    assert verdicts("megatron_fused") == [loop.expected for loop in LOOPS.values()]


def test_each_function_has_a_test() -> None:
    assert {*NODES, *SELECTED, "megatron_fused"} == set(FUNCTIONS)
