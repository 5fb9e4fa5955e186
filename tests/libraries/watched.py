"""A training of a library under the hooks, and the gradient that each step should have applied.

``Steps`` knows nothing of the hooks. It saves the parameters before each optimizer step and the
gradient that was applied. Afterwards the library's own loss is computed at these parameters on
all examples of the window as one batch, and its gradient is the true one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from gradledger_monitor.model.findings import EvaluationResult
from helpers.training import Batches, Recording, accused, cross_entropy, tokens
from helpers.updates import recorded_to_the_end


@dataclass
class Comparison:
    """The applied gradient is ``factor`` times the true one, and a rest of relative size."""

    factor: float
    deviation: float

    def is_true(self, tolerance: float = 1e-4) -> bool:
        """Whether the true gradient was applied."""
        return abs(self.factor - 1) < tolerance and self.deviation < tolerance


class Steps:
    """The parameters and the applied gradient of every step of an optimizer."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.parameters: list[list[Tensor]] = []
        self.gradients: list[Tensor] = []
        self._hook: Any = None

    def attach(self, optimizer: torch.optim.Optimizer) -> None:
        """Save every step of the optimizer from now on."""
        self._hook = optimizer.register_step_pre_hook(self._save)

    def _trained(self) -> list[nn.Parameter]:
        return [p for p in self.model.parameters() if p.requires_grad]

    def _save(self, *_: Any) -> None:
        self.parameters.append([p.detach().clone() for p in self._trained()])
        self.gradients.append(_flat([p.grad for p in self._trained()], self._trained()))

    def compare(self, step: int, loss: Callable[[], Tensor]) -> Comparison:
        """The applied gradient of a step beside that of a loss at its parameters."""
        return compared(self.gradients[step], self.true_gradient(step, loss))

    def true_gradient(self, step: int, loss: Callable[[], Tensor]) -> Tensor:
        """The gradient of a loss at the parameters before a step."""
        trained = self._trained()
        now = [p.detach().clone() for p in trained]
        self._assign(self.parameters[step])
        try:
            gradients = torch.autograd.grad(loss(), trained, allow_unused=True)
        finally:
            self._assign(now)
        return _flat(gradients, trained)

    def _assign(self, values: Sequence[Tensor]) -> None:
        with torch.no_grad():
            for parameter, value in zip(self._trained(), values, strict=True):
                parameter.copy_(value)


def compared(applied: Tensor, true: Tensor) -> Comparison:
    """One gradient as a multiple of another."""
    factor = float(applied @ true / (true @ true))
    rest = float((applied - factor * true).norm() / applied.norm())
    return Comparison(factor, rest)


def _flat(gradients: Sequence[Tensor | None], like: Sequence[Tensor]) -> Tensor:
    parts = [
        torch.zeros_like(p) if g is None else g.detach()
        for g, p in zip(gradients, like, strict=True)
    ]
    return torch.cat([part.flatten().double() for part in parts])


@dataclass
class Watched:
    """What the hooks recorded of a training, and the truth of its steps."""

    recorded: Recording
    truth: list[Comparison] = field(default_factory=list)

    @property
    def evaluation(self) -> EvaluationResult:
        return self.recorded.evaluation()

    @property
    def answer(self) -> tuple[str, list[str]]:
        """The verdict, and the rules that accuse."""
        evaluation = self.evaluation
        return evaluation.verdict, sorted(accused(evaluation))

    def balances(self, step: int = 0) -> dict[str, float]:
        """B of each objective of a step, by its name."""
        facts = self.recorded.facts()[step]
        return {o.name: o.ledger.balance for o in facts.objectives}


def assert_closes_its_windows(
    net: nn.Module, data: list[Batches], make: Callable[[nn.Module], Any], right: bool
) -> None:
    """Each step of the optimizer that ``make`` returns is recorded, and the loop judged."""
    with recorded_to_the_end() as recorded:
        optimizer = make(net)
        getattr(optimizer, "train", lambda: None)()
        for window in data:
            total = sum(map(tokens, window))
            for batch in window:
                summed = cross_entropy(net, batch, reduction="sum")
                loss = summed / total if right else cross_entropy(net, batch) / len(window)
                loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    assert len(recorded.records()) == len(data)
    evaluation = recorded.evaluation()
    expected = ("balanced", []) if right else ("broken", ["reduction.token_weights_unequal"])
    assert (evaluation.verdict, list(accused(evaluation))) == expected
