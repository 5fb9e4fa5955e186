"""Fused and chunked cross entropies of libraries: seen, and judged right.

The truth is ``helpers.training.Truth``: the weights that make the applied gradient of those of the
single tokens of a plain cross entropy in float64. On a CPU, Liger's kernels run in Triton's
interpreter.
"""

from __future__ import annotations

import functools
from importlib.util import module_from_spec, spec_from_file_location
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from helpers.device import DEVICE
from helpers.loops import answer
from helpers.projected import LOOPS, FusedLoss, assert_judged_right, train_projected
from helpers.training import IGNORED, Recording, recording
from libraries.fused_sources import cut_cross_entropy_on_cpu
from libraries.gpu_losses import SOURCES
from libraries.torchvision_import import import_torchvision

import_torchvision()  # which transformers imports, and Liger and trl import transformers


def liger_linear(hidden: Tensor, head: nn.Parameter, labels: Tensor, reduction: str) -> Tensor:
    """liger-kernel's fused linear cross entropy."""
    liger: Any = pytest.importorskip("liger_kernel.transformers")
    loss: Tensor = liger.LigerFusedLinearCrossEntropyLoss(
        ignore_index=IGNORED, reduction=reduction
    )(head, hidden, labels)
    return loss


def liger_logits(hidden: Tensor, head: nn.Parameter, labels: Tensor, reduction: str) -> Tensor:
    """liger-kernel's cross entropy of logits."""
    liger: Any = pytest.importorskip("liger_kernel.transformers")
    loss: Tensor = liger.LigerCrossEntropyLoss(ignore_index=IGNORED, reduction=reduction)(
        hidden @ head.T, labels
    )
    return loss


def cut(hidden: Tensor, head: nn.Parameter, labels: Tensor, reduction: str) -> Tensor:
    """cut-cross-entropy, its own implementation."""
    package: Any = pytest.importorskip("cut_cross_entropy")
    loss: Tensor = package.linear_cross_entropy(
        hidden, head, labels, ignore_index=IGNORED, reduction=reduction, impl="cce"
    )
    return loss


def cut_compiled(hidden: Tensor, head: nn.Parameter, labels: Tensor, reduction: str) -> Tensor:
    """cut-cross-entropy's implementation for torch.compile, as ``gradledger check`` runs it."""
    package: Any = pytest.importorskip("cut_cross_entropy")
    with torch.compiler.set_stance("force_eager"):
        loss: Tensor = package.linear_cross_entropy(
            hidden, head, labels, ignore_index=IGNORED, reduction=reduction, impl="torch_compile"
        )
    return loss


def cut_in_a_graph(hidden: Tensor, head: nn.Parameter, labels: Tensor, reduction: str) -> Tensor:
    """The same, compiled: with its own options, and a backend that needs no C++ compiler."""
    module: Any = pytest.importorskip("cut_cross_entropy.torch_compile")
    loss: Tensor = module.torch_compile_linear_cross_entropy(
        hidden, head, labels, ignore_index=IGNORED, reduction=reduction
    )
    return loss


@pytest.fixture
def cut_is_compiled_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph that was compiled before the hooks were installed is not read."""
    module: Any = pytest.importorskip("cut_cross_entropy.torch_compile")
    torch._dynamo.reset()
    compiled = module.torch_compile_linear_cross_entropy_apply
    eager = compiled._torchdynamo_orig_callable
    again = torch.compile(eager, fullgraph=True, dynamic=True, backend="aot_eager")
    monkeypatch.setattr(module, "torch_compile_linear_cross_entropy_apply", again)


def torchtune_chunked(hidden: Tensor, head: nn.Parameter, labels: Tensor, reduction: str) -> Tensor:
    """torchtune's chunks of logits; it has no sum, so the mean is multiplied by its count."""
    chunks = (hidden @ head.T)[None].chunk(3, dim=1)
    of_chunks = _torchtune().CEWithChunkedOutputLoss(num_output_chunks=3, ignore_index=IGNORED)
    loss: Tensor = of_chunks(list(chunks), labels[None])
    return loss if reduction == "mean" else loss * (labels != IGNORED).sum()


@functools.cache
def _torchtune() -> Any:
    """The module of the loss alone: the package imports torchao and its data loaders."""
    path = SOURCES / "torchtune/modules/loss/ce_chunked_output_loss.py"
    if not path.is_file():
        pytest.skip("torchtune is not installed")
    spec = spec_from_file_location("torchtune_chunks", path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def trl_chunked(hidden: Tensor, head: nn.Parameter, labels: Tensor, reduction: str) -> Tensor:
    """trl's log-probabilities in chunks of the vocabulary, reduced as its trainers do."""
    kernels: Any = pytest.importorskip("trl.kernels.chunked_logprob")
    kept = labels != IGNORED
    picked, *_ = kernels.ChunkedLogProbFunction.apply(
        hidden, head, None, labels.clamp_min(0), 1.0, 4, None, 1.0, ()
    )
    total: Tensor = -(picked * kept).sum()
    return total if reduction == "sum" else total / kept.sum()


@pytest.fixture(autouse=True)
def _kernels_on_cpu(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    if DEVICE == "cpu" and "[cut-" in request.node.name:
        cut_cross_entropy_on_cpu(monkeypatch)


FUSED = [liger_linear, liger_logits, cut]


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("fused", FUSED)
def test_a_fused_loss_is_judged_right(fused: FusedLoss, loop: str) -> None:
    recorded = assert_judged_right(fused, LOOPS[loop])
    (term,) = recorded.records()[0].micro_batches[0].terms
    assert term.kind.startswith("NllLoss:")
    assert term.inferred is None  # it is read from the arguments


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("composed", [cut_compiled, torchtune_chunked, trl_chunked])
def test_a_loss_whose_graph_shows_it_is_judged_right(composed: FusedLoss, loop: str) -> None:
    assert_judged_right(composed, LOOPS[loop])


@pytest.mark.usefixtures("cut_is_compiled_anew")
@pytest.mark.parametrize("loop", LOOPS)
def test_a_loss_that_a_library_compiles_is_judged_right(loop: str) -> None:
    recorded = assert_judged_right(cut_in_a_graph, LOOPS[loop])
    (term,) = recorded.records()[0].micro_batches[0].terms
    assert (term.kind, term.inferred) == ("NllLossBackward0", None)


def test_token_scaling_of_liger_is_not_measured() -> None:
    liger: Any = pytest.importorskip("liger_kernel.transformers")

    def scaled(hidden: Tensor, head: nn.Parameter, labels: Tensor, reduction: str) -> Tensor:
        of = liger.LigerFusedLinearCrossEntropyLoss(reduction=reduction, use_token_scaling=True)
        loss: Tensor = of(head, hidden, labels)
        return loss

    recorded = Recording()
    train_projected(scaled, LOOPS["right"], recording(recorded))
    assert answer(recorded) == ({}, "incomplete")
    reason = recorded.facts()[0].unmeasured
    assert reason is not None
    assert "use_token_scaling" in reason
