"""Trainers of transformers and trl with ``use_liger_kernel``, of which the fused loss is applied.

Its kernel runs in Triton's interpreter on a CPU, which fails on the other kernels of Liger. In trl
1.16, the option concerns the layers alone: its trainers compute the loss themselves.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from libraries.torchvision_import import import_torchvision

import_torchvision()
transformers: Any = pytest.importorskip("transformers")
pytest.importorskip("liger_kernel.transformers")

from libraries.language import llama  # noqa: E402
from libraries.test_transformers import run  # noqa: E402
from libraries.test_trl import (  # noqa: E402
    assert_right,
    assert_uneven,
    chat,
    generating,
    pair,
    rows,
    trainer,
)
from libraries.trainers import K, trained  # noqa: E402

LOSS_ALONE = {
    **dict.fromkeys(("rms_norm", "rope", "swiglu", "cross_entropy"), False),
    "fused_linear_cross_entropy": True,
}
LIGER: dict[str, Any] = {"use_liger_kernel": True, "liger_kernel_config": LOSS_ALONE}
MISSING, UNEVEN = "reduction.missing_division", "reduction.token_weights_unequal"
FUSED = "NllLoss:LigerFusedLinearCrossEntropyFunctionBackward"


class CountsNothing(transformers.Trainer):  # type: ignore[misc]
    """Withholds the number of tokens of the window: each micro-batch is a mean."""

    def compute_loss(self, model: Any, inputs: Any, *args: Any, **_: Any) -> Any:
        return super().compute_loss(model, inputs, *args)


def test_a_trainer_with_the_fused_loss_is_right(tmp_path: Path) -> None:
    watched = run(tmp_path, llama(), **LIGER)
    assert watched.recorded.records()[0].micro_batches[0].terms[0].kind == FUSED
    assert watched.answer == ("balanced", [])
    assert all(truth.is_true(1e-3) for truth in watched.truth)


def test_without_the_count_its_micro_batches_are_means(tmp_path: Path) -> None:
    watched = run(tmp_path, llama(), trainer=CountsNothing, **LIGER)
    assert watched.answer == ("broken", [MISSING, UNEVEN])
    assert all(truth.factor > K / 2 for truth in watched.truth)


NO_KERNELS: dict[str, Any] = {
    "use_liger_kernel": True,
    "liger_kernel_config": dict.fromkeys(LOSS_ALONE, False),
}


def test_sft_of_trl_is_right(tmp_path: Path) -> None:
    data = rows(chat, 60)
    assert_right(trained(trainer("SFT", tmp_path, data, max_length=64, **NO_KERNELS)))


@pytest.mark.parametrize("losses", [["sigmoid"], ["sigmoid", "sft"]])
def test_preferences_of_trl(tmp_path: Path, losses: list[str]) -> None:
    """Pairs are right; the token loss beside them is a mean over each micro-batch."""
    options = {"loss_type": losses, "ref_model": llama(), **NO_KERNELS}
    watched = trained(trainer("DPO", tmp_path, rows(pair), **options))
    if losses == ["sigmoid"]:
        assert_right(watched, deviation=1e-3)
    else:
        assert_uneven(watched)


@pytest.mark.parametrize("loss", ["dapo", "bnpo"])
def test_rewards_of_trl(tmp_path: Path, loss: str) -> None:
    watched = generating("GRPO", tmp_path, loss_type=loss, **NO_KERNELS)
    assert watched.answer[1] == ([] if loss == "dapo" else [UNEVEN])
