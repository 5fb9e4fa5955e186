"""A loss inside ``torch.compile``: the same ledger as in eager mode, and the same compiled code."""

from __future__ import annotations

import importlib
import re
import shutil
import types
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gradledger.observers.losses_compiled import live
from gradledger.torch_version import at_least
from helpers.training import (
    IGNORED,
    Batches,
    Recording,
    accused,
    recording,
    tiny_model,
    tokens,
    windows,
)

pytestmark = pytest.mark.filterwarnings("ignore")  # the compiler's own, with or without hooks

Loss = Callable[[nn.Module, Tensor, Tensor, Tensor], Any]
UNEQUAL = "reduction.token_weights_unequal"
STEPS = 4


def logits_of(model: nn.Module, inputs: Tensor) -> Tensor:
    flat: Tensor = model(inputs).flatten(0, 1)
    return flat


def sums(model: nn.Module, inputs: Tensor, labels: Tensor, count: Tensor) -> Tensor:
    return F.cross_entropy(logits_of(model, inputs), labels.flatten(), reduction="sum") / count


def means(model: nn.Module, inputs: Tensor, labels: Tensor, count: Tensor) -> Tensor:
    return F.cross_entropy(logits_of(model, inputs), labels.flatten()) / 4


def module_loss(model: nn.Module, inputs: Tensor, labels: Tensor, count: Tensor) -> Tensor:
    loss: Tensor = nn.CrossEntropyLoss(label_smoothing=0.1)(
        logits_of(model, inputs), labels.flatten()
    )
    return loss * 0.25


def masked(model: nn.Module, inputs: Tensor, labels: Tensor, count: Tensor) -> Tensor:
    losses = F.cross_entropy(logits_of(model, inputs), labels.flatten(), reduction="none")
    return (losses * (labels.flatten() != IGNORED)).sum() / count


def masked_means(model: nn.Module, inputs: Tensor, labels: Tensor, count: Tensor) -> Tensor:
    losses = F.cross_entropy(logits_of(model, inputs), labels.flatten(), reduction="none")
    mask = (labels != IGNORED).flatten().float()
    return (losses * mask).sum() / mask.sum() / 4


def shifted(model: nn.Module, inputs: Tensor, labels: Tensor, count: Tensor) -> Tensor:
    """As a language model of transformers: the targets are computed inside."""
    moved = F.pad(labels, (0, 1), value=IGNORED)[..., :-1].contiguous()
    loss = F.cross_entropy(
        logits_of(model, inputs).float(), moved.view(-1), ignore_index=IGNORED, reduction="sum"
    )
    return loss / count


def in_place(model: nn.Module, inputs: Tensor, labels: Tensor, count: Tensor) -> Tensor:
    loss = F.nll_loss(logits_of(model, inputs).log_softmax(-1), labels.flatten(), reduction="sum")
    loss /= count
    return loss


def beside_others_that_train_nothing(
    model: nn.Module, inputs: Tensor, labels: Tensor, count: Tensor
) -> Tensor:
    """A loss of detached logits, and one under ``no_grad``: what a loop shows, or a baseline."""
    logits = logits_of(model, inputs)
    loss = F.cross_entropy(logits, labels.flatten(), reduction="sum")
    detached = F.cross_entropy(logits.detach(), labels.flatten(), reduction="sum")
    with torch.no_grad():
        known = F.cross_entropy(logits, labels.flatten())
    return (loss + detached - 0.5 * known) / count


def with_logits(
    model: nn.Module, inputs: Tensor, labels: Tensor, count: Tensor
) -> tuple[Tensor, Tensor]:
    """As a model with a loss head: the loss is one of several results."""
    logits = logits_of(model, inputs)
    return F.cross_entropy(logits, labels.flatten(), reduction="sum") / count, logits


def two_losses(model: nn.Module, inputs: Tensor, labels: Tensor, count: Tensor) -> Tensor:
    logits, flat = logits_of(model, inputs), labels.flatten()
    half = flat.shape[0] // 2
    first = F.cross_entropy(logits[:half], flat[:half], reduction="sum")
    return (first + F.cross_entropy(logits[half:], flat[half:], reduction="sum")) / count


RIGHT: list[Loss] = [
    *(sums, masked, shifted, in_place, with_logits, two_losses, beside_others_that_train_nothing)
]
WRONG: list[Loss] = [means, module_loss, masked_means]


def train(
    loss_of: Loss,
    watched: AbstractContextManager[object],
    backend: str | None = "aot_eager",
    **options: Any,
) -> list[Tensor]:
    """The parameters that a training leaves; ``backend`` None: in eager mode."""
    torch._dynamo.reset()
    model = tiny_model()
    with watched:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        compiled: Any = loss_of
        if backend is not None:
            compiled = torch.compile(loss_of, backend=backend, **options)
        for window in windows(STEPS):
            count = torch.tensor(sum(map(tokens, window)))
            for inputs, labels in window:
                result = compiled(model, inputs, labels, count)
                (result[0] if isinstance(result, tuple) else result).backward()
            optimizer.step()
            optimizer.zero_grad()
    return [parameter.detach().clone() for parameter in model.parameters()]


def weights(recorded: Recording) -> list[list[tuple[Any, ...]]]:
    """Kind, tokens and weight of each term of each micro-batch."""
    return [
        sorted((t.kind, t.tokens, pytest.approx(t.weight, rel=1e-6)) for t in each.terms)
        for record in recorded.records()
        for each in record.micro_batches
    ]


def test_weights_are_on_the_device_of_the_result_if_no_input_shows_it() -> None:
    """Those of a squared error depend on no input."""
    model = tiny_model()

    def to_the_middle(x: Tensor) -> Tensor:
        outputs = model(x)
        return F.mse_loss(outputs, torch.full_like(outputs, 0.5), reduction="none").sum() / 7

    torch._dynamo.reset()
    with recording():
        loss = torch.compile(to_the_middle, backend="aot_eager")(torch.zeros(2, 8))
        (first, *_) = live.compiled_losses(loss.grad_fn, loss.output_nr)
        first.live.output.device = torch.device("meta")
        weight = first.live[first.index].weight
    assert isinstance(weight, Tensor) and weight.device.type == "meta"


@pytest.mark.parametrize("loss_of", [*RIGHT, *WRONG])
def test_a_compiled_loss_has_the_ledger_of_eager_mode(loss_of: Loss) -> None:
    eager, compiled = Recording(), Recording()
    train(loss_of, recording(eager), None)
    train(loss_of, recording(compiled), fullgraph=True, dynamic=True)
    assert weights(compiled) == weights(eager)
    assert all(weight is not None for each in weights(compiled) for _, _, weight in each)
    evaluation = compiled.evaluation()
    if loss_of in RIGHT:
        assert (accused(evaluation), evaluation.verdict) == ({}, "balanced")
    else:
        assert UNEQUAL in accused(evaluation)


def test_a_divisor_that_is_a_number_of_python_is_read_with_dynamic_shapes() -> None:
    """Dynamo passes it as a tensor, and reads it inside the graph."""
    model = tiny_model()

    def divided(inputs: Tensor, labels: Tensor, divisor: float) -> Tensor:
        loss = F.cross_entropy(logits_of(model, inputs), labels.flatten(), reduction="sum")
        return loss / divisor

    torch._dynamo.reset()
    compiled: Any = torch.compile(divided, backend="aot_eager", dynamic=True)
    data, recorded = windows(STEPS), Recording()
    with recording(recorded):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for window in data:
            for inputs, labels in window:
                compiled(inputs, labels, float(sum(map(tokens, window)))).backward()
            optimizer.step()
            optimizer.zero_grad()
    for record, window in zip(recorded.records(), data, strict=True):
        weight = pytest.approx(1 / sum(map(tokens, window)))
        assert [[t.weight for t in m.terms] for m in record.micro_batches] == [[weight]] * 4
    assert recorded.evaluation().verdict == "balanced"


@pytest.mark.parametrize("loss_of", [sums, masked_means])
def test_the_weights_are_the_gradients_of_the_tokens_in_double_precision(loss_of: Loss) -> None:
    recorded = Recording()
    train(loss_of, recording(recorded))
    data = windows(STEPS)
    for record, window in zip(recorded.records(), data, strict=True):
        count = torch.tensor(sum(map(tokens, window)))
        for micro_batch, (inputs, labels) in zip(record.micro_batches, window, strict=True):
            gradient = _gradient_of_logits(loss_of, inputs, labels, count)
            valid = labels.flatten() != IGNORED
            # a token's row is weight * (p - onehot), whose entry at the target is weight * (p - 1)
            logits = tiny_model().double()(inputs.double()).flatten(0, 1)
            chosen = labels.flatten().clamp(min=0)[:, None]
            probability = logits.softmax(-1).gather(1, chosen)[:, 0]
            expected = gradient.gather(1, chosen)[:, 0] / (probability - 1)
            (term,) = micro_batch.terms
            assert term.tokens == int(valid.sum())
            actual = torch.full_like(expected[valid], float(term.weight or 0))
            torch.testing.assert_close(expected[valid], actual, rtol=1e-6, atol=0.0)


def _gradient_of_logits(loss_of: Loss, inputs: Tensor, labels: Tensor, count: Tensor) -> Tensor:
    logits = tiny_model().double()(inputs.double()).detach().requires_grad_()
    loss = loss_of(lambda _: logits, inputs, labels, count)  # type: ignore[arg-type]
    gradient: Tensor = torch.autograd.grad(loss, logits)[0]
    return gradient.flatten(0, 1)


class Code:
    """The code that Dynamo generates, without the numbers in names."""

    def __init__(self) -> None:
        self.frames: list[Any] = []

    def __call__(self, code: types.CodeType, new_code: types.CodeType) -> None:
        names = [
            re.sub(r"(compiled_fn|resume\w*?)_\d+\w*", r"\1", each) for each in new_code.co_names
        ]
        self.frames.append((new_code.co_code, names))


def compiled_twice(loss_of: Loss, **options: Any) -> list[Any]:
    """What is compiled and computed, without and with the hooks."""
    results = []
    for watched in (nullcontext(), recording()):
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        code = Code()
        handle = torch._dynamo.convert_frame.register_bytecode_hook(code)
        try:
            parameters = train(loss_of, watched, **options)
        finally:
            handle.remove()
        counters = torch._dynamo.utils.counters
        stats = [dict(counters[kind]) for kind in ("frames", "stats", "graph_break", "recompiles")]
        results.append((code.frames, stats, [parameter.tolist() for parameter in parameters]))
    return results


@pytest.mark.parametrize("loss_of", [shifted, with_logits, masked_means])
def test_graphs_recompiles_code_and_results_are_those_without_hooks(loss_of: Loss) -> None:
    alone, watched = compiled_twice(loss_of)
    assert alone[0], "Dynamo generated no code"
    assert watched == alone


def broken_before_division(
    model: nn.Module, inputs: Tensor, labels: Tensor, count: Tensor
) -> Tensor:
    """The graph that divides has no loss."""
    total = F.cross_entropy(logits_of(model, inputs), labels.flatten(), reduction="sum")
    torch._dynamo.graph_break()
    return total / count


def broken_twice(model: nn.Module, inputs: Tensor, labels: Tensor, count: Tensor) -> Tensor:
    """The mean of a micro-batch, and two graphs that divide it."""
    loss = F.cross_entropy(logits_of(model, inputs), labels.flatten())
    torch._dynamo.graph_break()
    half = loss / 2
    torch._dynamo.graph_break()
    return 0.5 * half


@pytest.mark.parametrize("loss_of", [broken_before_division, broken_twice])
def test_a_loss_passes_graphs_that_divide_it(loss_of: Loss) -> None:
    eager, compiled = Recording(), Recording()
    train(loss_of, recording(eager), None)
    train(loss_of, recording(compiled))
    assert weights(compiled) == weights(eager)
    assert all(weight is not None for each in weights(compiled) for _, _, weight in each)
    assert compiled.evaluation().verdict == eager.evaluation().verdict
    assert (UNEQUAL in accused(compiled.evaluation())) == (loss_of is broken_twice)
    alone, watched = compiled_twice(loss_of)
    assert alone[0], "Dynamo generated no code"
    assert watched == alone


@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler")
def test_inductor_generates_the_same_code_and_the_loss_is_read() -> None:
    """``reduce-overhead`` as far as it goes without a GPU."""
    run_and_get_code = importlib.import_module("torch._inductor.utils").run_and_get_code
    model, (inputs, labels), results = tiny_model(), windows(1)[0][0], []
    recorded = Recording()
    for watched in (nullcontext(), recording(recorded)):
        torch._dynamo.reset()
        with torch._inductor.config.patch(force_disable_caches=True), watched:
            optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
            compiled = torch.compile(sums, mode="reduce-overhead")
            loss, code = run_and_get_code(compiled, model, inputs, labels, torch.tensor(5))
            loss.backward()
            gradients = [p.grad.tolist() for p in model.parameters() if p.grad is not None]
            # a running number, and folders of this call
            code = [re.sub(r'AOT ID: .*|#include "/.*/', "", each) for each in code]
            results.append((code, loss.item(), gradients))
            optimizer.step()
            optimizer.zero_grad()
    assert results[0][0]
    assert results[0] == results[1]
    (term,) = recorded.records()[0].micro_batches[0].terms
    assert (term.kind, term.tokens) == ("NllLossBackward0", tokens((inputs, labels)))
    assert term.weight == pytest.approx(1 / 5)


ELEMENTWISE = [F.mse_loss, F.smooth_l1_loss, F.huber_loss, F.binary_cross_entropy_with_logits]


@pytest.mark.parametrize("function", ELEMENTWISE)
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_a_loss_of_elements_has_the_ledger_of_eager_mode(function: Any, reduction: str) -> None:
    def loss_of(model: nn.Module, inputs: Tensor) -> Tensor:
        outputs = model(inputs)
        loss: Tensor = function(outputs, torch.full_like(outputs, 0.5), reduction=reduction)
        return loss.sum() / 7

    model, (inputs, _), seen = tiny_model(), windows(1)[0][0], []
    torch._dynamo.reset()
    for compute in (loss_of, torch.compile(loss_of, backend="aot_eager")):
        with recording() as recorded:
            optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
            compute(model, inputs).backward()
            optimizer.step()
            optimizer.zero_grad()
        seen.append(weights(recorded))
    assert seen[1] == seen[0]
    assert len(seen[1][0]) == 1


def squared(model: nn.Module, inputs: Tensor, labels: Tensor, count: Tensor) -> Tensor:
    return sums(model, inputs, labels, count) ** 2


def with_penalty(model: nn.Module, inputs: Tensor, labels: Tensor, count: Tensor) -> Tensor:
    penalty = sum(parameter.square().sum() for parameter in model.parameters())
    return sums(model, inputs, labels, count) + penalty


def assigned(model: nn.Module, inputs: Tensor, labels: Tensor, count: Tensor) -> Tensor:
    """The targets are written to inside the graph: they cannot be computed again."""
    labels = labels.clone()
    labels[:, 0] = IGNORED
    return sums(model, inputs, labels, count)


def by_a_prediction(model: nn.Module, inputs: Tensor, labels: Tensor, count: Tensor) -> Tensor:
    """The weights depend on the model."""
    logits = logits_of(model, inputs)
    losses = F.cross_entropy(logits, labels.flatten(), reduction="none")
    return (losses * logits.detach().softmax(-1)[:, 0]).sum() / count


def broken_before_square(model: nn.Module, inputs: Tensor, labels: Tensor, count: Tensor) -> Tensor:
    total = sums(model, inputs, labels, count)
    torch._dynamo.graph_break()
    return total**2


def broken_before_penalty(
    model: nn.Module, inputs: Tensor, labels: Tensor, count: Tensor
) -> Tensor:
    total = sums(model, inputs, labels, count)
    torch._dynamo.graph_break()
    return total + sum(parameter.square().sum() for parameter in model.parameters())


UNREADABLE = [squared, with_penalty, assigned, by_a_prediction]
UNREADABLE += [broken_before_square, broken_before_penalty]


@pytest.mark.parametrize("loss_of", UNREADABLE)
def test_a_graph_that_looks_different_is_not_measured(loss_of: Loss) -> None:
    recorded = Recording()
    watched = train(loss_of, recording(recorded))
    for ours, theirs in zip(watched, train(loss_of, nullcontext()), strict=True):
        assert torch.equal(ours, theirs)
    for record in recorded.records():
        for each in record.micro_batches:
            assert not each.terms
            assert "ledger.micro_batch(tokens=" in each.missing["terms"]
    assert not accused(recorded.evaluation())


def broken_before_reduction(
    model: nn.Module, inputs: Tensor, labels: Tensor, count: Tensor
) -> Tensor:
    """The graph that adds up and divides has no loss, and gets more than a number."""
    losses = F.cross_entropy(logits_of(model, inputs), labels.flatten(), reduction="none")
    torch._dynamo.graph_break()
    return losses.sum() / count


def test_a_sum_in_a_later_graph_is_a_function_that_hides_its_graph() -> None:
    recorded = Recording()
    train(broken_before_reduction, recording(recorded))
    terms = [each.terms[0] for record in recorded.records() for each in record.micro_batches]
    assert all("hides its graph" in str(term.missing) for term in terms)
    evaluation = recorded.evaluation()
    assert (accused(evaluation), evaluation.verdict) == ({}, "incomplete")


def test_dynamo_is_restored_and_compiled_functions_stay_usable() -> None:
    owner = importlib.import_module("torch._dynamo.output_graph").OutputGraph
    original = owner.call_user_compiler
    model, (inputs, labels) = tiny_model(), windows(1)[0][0]
    torch._dynamo.reset()
    compiled = torch.compile(sums, backend="aot_eager")
    with recording():
        assert owner.call_user_compiler is not original
        inside = compiled(model, inputs, labels, torch.tensor(3))
    assert owner.call_user_compiler is original
    assert torch.equal(compiled(model, inputs, labels, torch.tensor(3)), inside)


@pytest.mark.skipif(not at_least((2, 7)), reason="Dynamo of PyTorch 2.6 refuses the function")
def test_a_compiled_loss_function_is_read_beside_an_eager_model() -> None:
    function: Any = F.cross_entropy
    torch._dynamo.reset()
    compiled: Any = torch.compile(function, backend="aot_eager", dynamic=True)

    def loss_of(model: nn.Module, inputs: Tensor, labels: Tensor, count: Tensor) -> Tensor:
        loss: Tensor = compiled(logits_of(model, inputs), labels.flatten(), reduction="sum")
        return loss / count

    recorded, data = Recording(), windows(STEPS)
    with recording(recorded):
        model = tiny_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        _run(model, optimizer, loss_of, data)
    terms = [each.terms[0] for record in recorded.records() for each in record.micro_batches]
    assert all(term.inferred is None and term.weight for term in terms)
    evaluation = recorded.evaluation()
    assert (accused(evaluation), evaluation.verdict) == ({}, "balanced")


def _run(
    model: nn.Module, optimizer: torch.optim.Optimizer, loss_of: Loss, data: list[Batches]
) -> None:
    for window in data:
        count = torch.tensor(sum(map(tokens, window)))
        for inputs, labels in window:
            loss_of(model, inputs, labels, count).backward()
        optimizer.step()
        optimizer.zero_grad()
