"""Against the gradient of one large batch, where each rank holds some stages of the model."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from museum.labels import Label
from museum.truth.objectives import tokens
from museum.truth.seen import Step

Values = dict[str, Tensor]  # by name of the parameter


def tell(label: Label, names: dict[str, Any], steps: list[Step]) -> dict[str, Any]:
    """Reads ``model``, of which the rank trains some parameters, and ``windows``.

    The ranks of one pipeline have the same ``windows``. ``plain`` is the model before its
    parameters were sharded, if they are.
    """
    name_of = {p: name for name, p in names["model"].named_parameters()}
    told: list[tuple[Values, Values]] = [({}, {}) for _ in names["windows"]]
    taken = dict.fromkeys((id(step.optimizer) for step in steps), 0)
    for step in steps:  # of each optimizer, where there are several
        parameters, gradients = told[taken[id(step.optimizer)]]
        taken[id(step.optimizer)] += 1
        order = [name_of[p] for group in step.optimizer.param_groups for p in group["params"]]
        parameters.update(zip(order, step.parameters, strict=True))
        gradients.update(
            (name, gradient)
            for name, gradient in zip(order, step.gradients, strict=True)
            if gradient is not None
        )
    plain = names.get("plain", names["model"])
    return {"model": plain, "windows": names["windows"], "steps": told}


def fault(ranks: list[dict[str, Any]]) -> float:
    """The largest relative error of a step's gradient, over the stages of all ranks."""
    every_window = {str(rank["windows"]): rank["windows"] for rank in ranks}.values()
    errors = []
    for index, per_rank in enumerate(zip(*(rank["steps"] for rank in ranks), strict=True)):
        leaves: Values = {}
        applied: Values = {}
        for parameters, gradients in per_rank:
            leaves |= {name: p.double().requires_grad_() for name, p in parameters.items()}
            applied |= gradients
        true = _true(ranks[0]["model"], leaves, [windows[index] for windows in every_window])
        got = torch.cat([applied[name].double().flatten() for name in leaves])
        errors.append(float((got - true).norm() / true.norm()))
    return max(errors)


def _true(model: Any, leaves: Values, windows: list[Any]) -> Tensor:
    """The gradient of the mean over all tokens."""

    def call(ids: Tensor) -> Any:
        return torch.func.functional_call(model, leaves, (ids,))

    parts = [tokens(call, batch) for window in windows for batch in window]
    mean = torch.stack([loss for loss, _ in parts]).sum() / sum(count for _, count in parts)
    gradients = torch.autograd.grad(mean, list(leaves.values()))
    return torch.cat([gradient.flatten() for gradient in gradients])
