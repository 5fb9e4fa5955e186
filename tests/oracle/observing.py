"""Runs a script with the hooks and writes what they record, and what the truth is computed from.

In a forked child, as a ``watch`` of ``museum.stage``. What is kept beside the hooks knows nothing
of them: the parameters and gradients at each optimizer step, and the gradient of each element of
each objective at those parameters, in float64.
"""

from __future__ import annotations

import io
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_pre_hook

from museum.truth.seen import Step, look
from museum.watching import with_hooks
from oracle.objectives import OBJECTIVES, Batch, auxiliary_elements
from oracle.program import Program
from oracle.writing import CLIPPED_TO


@dataclass
class Columns:
    """The elements of one objective in one window of one rank."""

    gradients: Tensor  # [elements, parameters], float64
    masses: Tensor  # [elements]: what each counts in a mean
    micro_batches: Tensor  # [elements]: the index of the micro-batch


@dataclass
class Observed:
    """One rank of one program."""

    windows: int
    steps: int  # of the optimizer
    sizes: list[int]  # micro-batches of each window
    rows: list[int]  # of each window
    padded: list[int]  # places of each window, padding included
    applied: list[Tensor] = field(default_factory=list)  # [parameters] of each step, not clipped
    columns: list[dict[str, Columns]] = field(default_factory=list)  # of each step
    problem: str = ""


def with_truth(script: Path, output: Path) -> None:
    """Write the records and an ``Observed`` to ``output``; ``read`` returns both."""
    program = Program(**json.loads(script.with_suffix(".json").read_text()))
    steps: list[Step] = []
    handle = register_optimizer_step_pre_hook(lambda optimizer, *_: steps.append(look(optimizer)))
    names: dict[str, Any] = {}
    with_hooks(script, output, then=lambda left: names.update(left))
    handle.remove()
    torch.save((output.read_bytes(), _observed(program, names, steps)), output)


def read(recorded: bytes) -> tuple[bytes, Observed]:
    """The records and the ``Observed`` of one rank, from what it wrote."""
    records, observed = torch.load(io.BytesIO(recorded), weights_only=False)
    return records, observed


def _observed(program: Program, names: dict[str, Any], steps: list[Step]) -> Observed:
    windows = names["windows"]
    observed = Observed(
        len(windows),
        len(steps),
        [len(window) for window in windows],
        [sum(len(batch[1]) for batch in window) for window in windows],
        [sum(batch[1].numel() for batch in window) for window in windows],
    )
    if len(steps) != len(windows):  # a mistake that needs no arithmetic
        return observed
    norms = names.get("norms") or [0.0] * len(steps)
    for step, window, norm in zip(steps, windows, norms[-len(steps) :], strict=True):
        observed.applied.append(_flat(step) / min(1.0, CLIPPED_TO / (norm + 1e-6)))
        observed.columns.append(_columns(program, names["net"], step, window))
    return observed


def _flat(step: Step) -> Tensor:
    """The gradient of a step [parameters], in the order of ``net.parameters()``."""
    pairs = zip(step.gradients, step.parameters, strict=True)
    return torch.cat(
        [(torch.zeros_like(p) if g is None else g).double().flatten() for g, p in pairs]
    )


def _columns(
    program: Program, net: torch.nn.Module, step: Step, window: list[Batch]
) -> dict[str, Columns]:
    named = [name for name, _ in net.named_parameters()]
    leaves = dict(zip(named, (p.double().requires_grad_() for p in step.parameters), strict=True))
    parts: dict[str, list[tuple[Tensor, Tensor, int]]] = {}
    for index, batch in enumerate(window):
        for objective, (losses, masses) in _elements(program, net, leaves, batch).items():
            gradients = _gradients(losses, list(leaves.values()))
            parts.setdefault(objective, []).append((gradients, masses, index))
    if program.auxiliary == "penalty":
        penalty = 0.01 * sum((p.square().sum() for p in leaves.values()), torch.zeros(()))
        one = torch.ones(1, dtype=torch.double)
        parts["penalty"] = [(_gradients(penalty.reshape(1), list(leaves.values())), one, 0)]
    return {
        objective: Columns(
            torch.cat([gradients for gradients, _, _ in each]),
            torch.cat([masses.detach() for _, masses, _ in each]).double(),
            torch.cat([torch.full((len(masses),), index) for _, masses, index in each]),
        )
        for objective, each in parts.items()
    }


def _elements(
    program: Program, net: torch.nn.Module, leaves: dict[str, Tensor], batch: Batch
) -> dict[str, tuple[Tensor, Tensor]]:
    outputs = torch.func.functional_call(net, leaves, (batch[0].double(),))
    first, second = outputs if isinstance(outputs, tuple) else (outputs, None)
    elements = {program.objective: OBJECTIVES[program.objective].elements(first, batch)}
    if program.auxiliary not in ("none", "penalty"):
        elements[program.auxiliary] = auxiliary_elements(program.auxiliary, first, second, batch)
    return elements


def _gradients(losses: Tensor, leaves: list[Tensor]) -> Tensor:
    """The gradient [elements, parameters] of every loss [elements]."""
    count = len(losses)
    if not count:
        return torch.zeros(0, sum(leaf.numel() for leaf in leaves), dtype=torch.double)
    rows = torch.autograd.grad(
        losses,
        leaves,
        torch.eye(count, dtype=losses.dtype),
        is_grads_batched=True,
        allow_unused=True,
        retain_graph=True,
    )
    shapes = [(count, leaf.numel()) for leaf in leaves]
    pairs = zip(rows, shapes, strict=True)
    parts = [losses.new_zeros(shape) if row is None else row.reshape(shape) for row, shape in pairs]
    return torch.cat(parts, dim=1)
