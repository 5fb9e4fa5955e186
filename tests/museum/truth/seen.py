"""What a witness sees at each optimizer step; knows nothing of the hooks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor


@dataclass
class Step:
    """One optimizer step: the parameters it started from, the gradients it got, and its rate."""

    optimizer: Any
    parameters: list[Tensor]
    gradients: list[Tensor | None]
    lr: float


def look(optimizer: Any) -> Step:
    """Copy what the step is about to use."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    return Step(
        optimizer,
        [p.detach().clone() for p in parameters],
        [None if p.grad is None else p.grad.detach().clone() for p in parameters],
        float(optimizer.param_groups[0]["lr"]),
    )
