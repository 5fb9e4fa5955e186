"""A small language model that returns its logits and its loss, as nanoGPT does, and is compiled.

As a whole, or block by block. The script starts backward from the second output of the compiled
model itself, or divides it before. The truth is the gradient of the mean over the window's tokens.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from helpers.training import Recording, accused, recording

pytestmark = pytest.mark.filterwarnings("ignore")  # the compiler's own, with or without hooks

TOKENS, WIDTH, LENGTH, IGNORED, K, STEPS = 11, 8, 6, -1, 4, 3
MISSING, UNEVEN = "reduction.missing_division", "reduction.token_weights_unequal"
EVEN, UNEVEN_LENGTHS = (6, 6, 6, 6), (2, 6, 3, 5)
Window = list[tuple[Tensor, Tensor]]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.mix = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        q, k, v = self.mix(self.norm(hidden)).chunk(3, -1)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        mixed: Tensor = hidden + self.out(attended)
        return mixed


class LanguageModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(TOKENS, WIDTH)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(WIDTH, TOKENS, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.embedding(tokens)
        for block in self.blocks:
            hidden = block(hidden)
        logits = self.head(hidden)
        flat = logits.view(-1, TOKENS), targets.view(-1)
        return logits, F.cross_entropy(*flat, ignore_index=IGNORED)


class Loop(NamedTuple):
    """The labels of each micro-batch, what divides its loss, and what is true of that."""

    lengths: tuple[int, ...]
    divide: Callable[[Tensor], Tensor]
    factor: float | None  # of the true gradient; None: it has another direction
    expected: tuple[set[str], str]


LOOPS = {
    "right": Loop(EVEN, lambda loss: loss / K, 1.0, (set(), "balanced")),
    "undivided": Loop(EVEN, lambda loss: loss, float(K), ({MISSING}, "suspect")),
    "mean of means": Loop(UNEVEN_LENGTHS, lambda loss: loss / K, None, ({UNEVEN}, "broken")),
}


def windows(lengths: tuple[int, ...]) -> list[Window]:
    generator = torch.Generator().manual_seed(1)
    data = []
    for _ in range(STEPS):
        window = []
        for length in lengths:
            tokens, targets = torch.randint(TOKENS, (2, 4, LENGTH), generator=generator)
            targets[:, length:] = IGNORED
            window.append((tokens, targets))
        data.append(window)
    return data


def true_gradient(model: nn.Module, window: Window) -> list[Tensor]:
    copied = LanguageModel()
    copied.load_state_dict(model.state_dict())
    _, loss = copied(*(torch.cat(each) for each in zip(*window, strict=True)))
    return list(torch.autograd.grad(loss, list(copied.parameters())))


def train(loop: Loop, prepare: Callable[[Any], Any], recorded: Recording) -> None:
    """Train, and check that what is expected of the loop is true of it."""
    torch._dynamo.reset()
    model: Any = LanguageModel()
    compiled = prepare(model)
    with recording(recorded):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for window in windows(loop.lengths):
            for tokens, targets in window:
                _, loss = compiled(tokens, targets)
                loop.divide(loss).backward()
            true = torch.cat([g.flatten() for g in true_gradient(model, window)])
            applied = torch.cat([p.grad.flatten() for p in model.parameters()])
            factor = float(applied @ true / (true @ true))
            rest = float((applied - factor * true).norm() / applied.norm())
            assert (rest < 1e-4) == (loop.factor is not None)
            assert loop.factor is None or factor == pytest.approx(loop.factor, rel=1e-4)
            optimizer.step()
            optimizer.zero_grad()


def whole(model: Any, backend: str = "aot_eager") -> Any:
    return torch.compile(model, backend=backend)


def in_blocks(model: Any) -> Any:
    for block in model.blocks:
        block.compile(backend="aot_eager")
    return model


@pytest.mark.parametrize("prepare", [whole, in_blocks])
@pytest.mark.parametrize("name", LOOPS)
def test_a_compiled_language_model_is_judged(name: str, prepare: Callable[[Any], Any]) -> None:
    recorded = Recording()
    train(LOOPS[name], prepare, recorded)
    evaluation = recorded.evaluation()
    assert (set(accused(evaluation)), evaluation.verdict) == LOOPS[name].expected


@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler")
def test_a_language_model_compiled_by_inductor_is_judged() -> None:
    recorded = Recording()
    train(LOOPS["undivided"], lambda model: whole(model, "inductor"), recorded)
    assert set(accused(recorded.evaluation())) == {MISSING}
