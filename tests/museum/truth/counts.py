"""Against the number of optimizer steps that there should have been."""

from __future__ import annotations

import itertools
from typing import Any

import torch

from museum.labels import Label
from museum.truth.seen import Step


def tell_steps(label: Label, names: dict[str, Any], steps: list[Step]) -> dict[str, Any]:
    """Reads ``windows``: one step each, whatever is in them."""
    return {"steps": len(steps), "windows": len(names["windows"])}


def fault_of_steps(ranks: list[dict[str, Any]]) -> float:
    """How far the count of steps is from that of windows."""
    return max(abs(rank["steps"] / rank["windows"] - 1) for rank in ranks)


def tell_gradients(label: Label, names: dict[str, Any], steps: list[Step]) -> dict[str, Any]:
    """The gradient that each step applied."""
    zero = torch.zeros(1)
    flat = [torch.cat([zero if g is None else g.flatten() for g in s.gradients]) for s in steps]
    return {"gradients": flat}


def fault_of_repeats(ranks: list[dict[str, Any]]) -> float:
    """The share of steps that applied the gradient of the step before, or none at all."""
    gradients = ranks[0]["gradients"]
    pairs = list(itertools.pairwise(gradients))
    again = [a.equal(b) or not b.any() for a, b in pairs]
    return sum(again) / len(again)
