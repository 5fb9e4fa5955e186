"""Hooks that compiled code meets: its graphs are the same, and what it hides is not measured."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from helpers.pytorch import since
from helpers.training import (
    LENGTHS,
    Batches,
    Recording,
    accused,
    cross_entropy,
    recording,
    tiny_model,
    tokens,
    windows,
)

Step = Callable[[], Any]
Graphs = tuple[dict[str, int], ...]
Shapes = tuple[tuple[tuple[int, ...], ...], ...]  # as LENGTHS
Autograd = Callable[[], AbstractContextManager[Any]]

pytestmark = pytest.mark.filterwarnings("ignore")  # the compiler's own, with or without hooks


def graphs() -> Graphs:
    """What was compiled since the last call: frames, graphs, and compiled autograd's captures."""
    counters = torch._dynamo.utils.counters
    result = tuple(dict(counters[kind]) for kind in ("frames", "stats", "compiled_autograd"))
    counters.clear()
    torch._dynamo.reset()
    return result


def compiled(function: Any, **options: Any) -> Any:
    """By Dynamo alone; what a backend makes of a graph is not the subject."""
    return torch.compile(function, backend="eager", **options)


def whole_step(model: nn.Module, optimizer: torch.optim.Optimizer) -> Callable[[Any, int], None]:
    """A training step with everything inside."""

    def step(window: Any, count: int) -> None:
        for batch in window:
            (cross_entropy(model, batch, reduction="sum") / count).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        optimizer.zero_grad()

    return step


def with_clip(model: nn.Module, optimizer: torch.optim.Optimizer) -> Callable[[Any, int], None]:
    """Only clipping is compiled, whole."""
    clip = compiled(nn.utils.clip_grad_norm_, fullgraph=True)

    def step(window: Any, count: int) -> None:
        for batch in window:
            (cross_entropy(model, batch, reduction="sum") / count).backward()
        clip(list(model.parameters()), 0.1)
        optimizer.step()
        optimizer.zero_grad()

    return step


def with_optimizer(
    model: nn.Module, optimizer: torch.optim.Optimizer
) -> Callable[[Any, int], None]:
    """Only the optimizer's step is compiled."""
    update = compiled(optimizer.step)

    def step(window: Any, count: int) -> None:
        for batch in window:
            (cross_entropy(model, batch, reduction="sum") / count).backward()
        update()
        optimizer.zero_grad()

    return step


def with_everything(
    model: nn.Module, optimizer: torch.optim.Optimizer
) -> Callable[[Any, int], None]:
    """One compiled function that breaks its graph where it must."""
    return compiled(whole_step(model, optimizer))  # type: ignore[no-any-return]


PROGRAMS = {each.__name__: each for each in (with_clip, with_optimizer, with_everything)}


def train(program: str, data: list[Batches], autograd: Autograd) -> list[Tensor]:
    """The parameters that a training leaves."""
    model = tiny_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    step = PROGRAMS.get(program, whole_step)(model, optimizer)
    with autograd():
        for window in data:
            step(window, sum(map(tokens, window)))
    return [parameter.detach().clone() for parameter in model.parameters()]


@cache
def train_twice(
    program: str, shapes: Shapes = LENGTHS, autograd: Autograd = nullcontext
) -> Recording:
    """Train without and with the hooks; weights and graphs must be the same."""
    graphs()
    data = windows(4, lengths=shapes)
    alone, graphs_alone = train(program, data, autograd), graphs()
    with recording() as recorded:
        observed, graphs_observed = train(program, data, autograd), graphs()
    assert all(torch.equal(a, b) for a, b in zip(alone, observed, strict=True))
    assert graphs_observed[1:] == graphs_alone[1:]
    # none of ours; Dynamo leaves out the frames around a compiled step, where hooks break no graph
    assert graphs_observed[0].get("total", 0) <= graphs_alone[0].get("total", 0)
    return recorded


whole_clip = since("2.13", "Dynamo cannot compile clip_grad_norm_ as one graph")


@pytest.mark.parametrize(
    "program", [pytest.param("with_clip", marks=whole_clip), "with_optimizer", "with_everything"]
)
def test_compiled_callers_get_the_same_graphs_and_weights(program: str) -> None:
    recorded = train_twice(program)
    assert len(recorded.steps) == 4
    assert accused(recorded.evaluation()) == {}


@whole_clip
def test_a_compiled_clip_is_not_measured_rather_than_taken_for_a_division() -> None:
    evaluation = train_twice("with_clip").evaluation()
    reason = "not_measured: clipping runs inside a compiled function, where it cannot be seen"
    assert evaluation.coverage["reduction.wrong_denominator"] == reason
    assert evaluation.verdict == "incomplete"


def test_a_compiled_optimizer_step_is_evaluated() -> None:
    assert train_twice("with_optimizer").evaluation().verdict == "balanced"


def test_compiled_autograd_does_not_compile_our_hooks() -> None:
    """Hooks of nodes would be new objects in each backward, and each would be compiled again."""
    module = torch._dynamo.compiled_autograd
    one_shape = (((5, 3), (5, 3)),)
    recorded = train_twice("eager", one_shape, lambda: module._enable(compiled))
    assert "compiled autograd" in recorded.evaluation().coverage["reduction.token_weights_unequal"]
