"""What a witness sees at each optimizer step; knows nothing of the hooks.

Of a sharded parameter it sees the whole: it runs the collectives that gather it, which the hooks
never do.
"""

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
        [_whole(p) for p in parameters],
        [None if p.grad is None else _whole(p.grad) for p in parameters],
        float(optimizer.param_groups[0]["lr"]),
    )


def _whole(tensor: Any) -> Tensor:
    whole: Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return whole.detach().clone()
