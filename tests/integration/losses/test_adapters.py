"""Adapters of loss functions: found when a library is imported, and only if it is the known one.

The libraries are packages of one file with the signature of the real one, and a loss in PyTorch.
The real packages are in ``tests/libraries``.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from gradledger.observers.losses_out_of_sight import calls
from helpers.training import CLASSES, IGNORED, Recording, recording, tiny_model, windows

LOSS = """
import torch
import torch.nn.functional as F

class {name}(torch.autograd.Function):
    @staticmethod
    def forward(ctx, {parameters}):
        with torch.enable_grad():
            inner = logits.detach().requires_grad_()
            loss = F.cross_entropy(inner.float(), labels, ignore_index={ignored}, reduction="none")
            (ctx.gradient,) = torch.autograd.grad(loss.sum(), inner)
        return loss.detach()

    @staticmethod
    def backward(ctx, upstream):
        gradient = ctx.gradient * upstream[:, None]
        return (gradient, *[None] * (len(ctx.needs_input_grad) - 1))
"""
FLASH = "flash_attn.ops.triton.cross_entropy", "CrossEntropyLoss"
APEX = "apex.contrib.xentropy.softmax_xentropy", "SoftmaxCrossEntropyLoss"
FLASH_PARAMETERS = (
    "logits, labels, precomputed_lse=None, smoothing=0.0, logit_scale=1.0, lse_square_scale=0.0, "
    "{ignored}=-100, inplace_backward=False, process_group=None"
)
APEX_PARAMETERS = "logits, labels, smoothing=0.0, {ignored}=0, half_to_float=False"


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of packages, which are forgotten afterwards."""
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if name.split(".")[0] in ("flash_attn", "apex"):
            del sys.modules[name]
    calls.unknown_signatures.clear()


def write(folder: Path, function: tuple[str, str], parameters: str, ignored: str) -> None:
    module, name = function
    *parents, file = module.split(".")
    for parent in parents:
        folder /= parent
        folder.mkdir()
        (folder / "__init__.py").touch()
    text = LOSS.format(name=name, parameters=parameters, ignored=ignored)
    (folder / f"{file}.py").write_text(text, encoding="utf-8")


def terms(function: tuple[str, str], ignored: int) -> list[Any]:
    """The terms of a window whose loss function is imported when the hooks are on."""
    recorded, model = Recording(), tiny_model()
    with recording(recorded):
        module, name = function
        loss_of: Any = getattr(importlib.import_module(module), name).apply
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for inputs, labels in windows(1)[0]:
            marked = labels.masked_fill(labels == IGNORED, ignored).flatten()
            logits = model(inputs).flatten(0, 1).half()
            losses: Tensor = loss_of(logits, marked)
            losses.sum().backward()
        optimizer.step()
    return [term for m in recorded.records()[0].micro_batches for term in m.terms]


@pytest.mark.parametrize(
    ("function", "parameters", "name", "ignored"),
    [
        (FLASH, FLASH_PARAMETERS, "ignore_index", -100),
        (APEX, APEX_PARAMETERS, "padding_idx", CLASSES - 1),
    ],
    ids=["flash-attn", "apex"],
)
def test_the_arguments_show_which_tokens_count_in_half_precision_too(
    packages: Path, function: tuple[str, str], parameters: str, name: str, ignored: int
) -> None:
    write(packages, function, parameters.format(ignored=name).replace("=0,", f"={ignored},"), name)
    found = terms(function, ignored)
    labels = [batch[1].masked_fill(batch[1] == IGNORED, ignored) for batch in windows(1)[0]]
    assert [term.tokens for term in found] == [int((each != ignored).sum()) for each in labels]
    assert {term.weight for term in found} == {1.0}
    assert {term.kind for term in found} == {f"NllLoss:{function[1]}Backward"}


def test_a_function_with_other_parameters_is_not_read(packages: Path) -> None:
    write(packages, FLASH, FLASH_PARAMETERS.format(ignored="skipped"), "skipped")
    found = terms(FLASH, IGNORED)
    assert {term.tokens for term in found} == {None}  # in fp16, its rows prove nothing
    (reason,) = calls.unknown_signatures.values()
    assert reason == (
        "flash_attn.ops.triton.cross_entropy.CrossEntropyLoss has no parameter ignore_index: "
        "this version of the library is not known"
    )


def test_the_function_is_restored(packages: Path) -> None:
    write(packages, FLASH, FLASH_PARAMETERS.format(ignored="ignore_index"), "ignore_index")
    terms(FLASH, IGNORED)
    function = getattr(sys.modules[FLASH[0]], FLASH[1])
    assert isinstance(vars(function)["forward"], staticmethod)
    assert not hasattr(function.forward, "__wrapped__")


def test_targets_that_change_before_backward_are_not_read() -> None:
    target = torch.tensor([1, 2, 3])
    call = calls.Call("sum", target, IGNORED)
    assert call.readable_target is target
    target[0] = IGNORED
    assert call.readable_target is None
    assert call.why_unreadable == calls.CHANGED


def compiled_graphs(function: Any) -> list[str]:
    """The graphs that Dynamo makes of a caller of the function, without a break."""
    torch._dynamo.reset()
    graphs: list[str] = []

    def keep(graph: Any, _: Any) -> Any:
        graphs.append(graph.print_readable(print_output=False))
        return graph.forward

    labels = torch.tensor([1, 2, 0])

    def caller(logits: Tensor) -> Tensor:
        result: Tensor = function(logits, labels).sum() / 3
        return result

    compiled = torch.compile(caller, backend=keep, fullgraph=True)
    for _ in range(2):
        compiled(torch.randn(3, CLASSES, requires_grad=True)).backward()
    return graphs


PLAIN = """
import torch

class CrossEntropyLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits, labels, ignore_index=-100):
        logs = logits.log_softmax(-1)
        ctx.save_for_backward(logs, labels)
        return -logs.gather(-1, labels[:, None])[:, 0]

    @staticmethod
    def backward(ctx, upstream):
        logs, labels = ctx.saved_tensors
        wanted = torch.zeros_like(logs).scatter(-1, labels[:, None], 1.0)
        return (logs.exp() - wanted) * upstream[:, None], None, None
"""


# Dynamo makes an object of the function
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
def test_a_compiled_caller_has_the_same_graph(packages: Path) -> None:
    write(packages, FLASH, "logits, labels", "ignore_index")
    path = packages.joinpath(*FLASH[0].split("."))
    path.with_suffix(".py").write_text(PLAIN, encoding="utf-8")
    module = importlib.import_module(FLASH[0])
    function: Any = getattr(module, FLASH[1])
    alone = compiled_graphs(function.apply)
    with recording():
        assert hasattr(function.forward, "__wrapped__")
        assert compiled_graphs(function.apply) == alone
    assert len(alone) == 1
