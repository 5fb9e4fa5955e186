"""Against the gradient of one large batch: what each step should have applied."""

from __future__ import annotations

import functools
import itertools
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from museum.labels import Label
from museum.truth.objectives import terms_of
from museum.truth.seen import Step


def tell(label: Label, names: dict[str, Any], steps: list[Step]) -> dict[str, Any]:
    """Reads ``model`` and ``windows``, and ``max_norm`` where there is clipping.

    ``plain`` is the model before its parameters were sharded, if they are. ``steps`` is None if the
    program makes more or fewer of them than there are windows.
    """
    model = unwrapped(names["model"])
    optimizer = steps[0].optimizer
    own = [step for step in steps if step.optimizer is optimizer]
    if len(own) != len(names["windows"]):
        return {"steps": None, "max_norm": None}
    called = names.get("plain", model)
    pairs = zip(own, names["windows"], strict=True)
    told = [_one_step(model, called, label.objective, *pair) for pair in pairs]
    return {"steps": told, "max_norm": names.get("max_norm")}


def tell_by_parameter(label: Label, names: dict[str, Any], steps: list[Step]) -> dict[str, Any]:
    """The same, where ``optimizers`` has one for each parameter, which steps in each backward."""
    of = {id(optimizer): parameter for parameter, optimizer in names["optimizers"].items()}
    count, together = len(of), []
    for begin in range(0, len(steps), count):
        parts = steps[begin : begin + count]
        group = {"params": [of[id(part.optimizer)] for part in parts]}
        parameters = [part.parameters[0] for part in parts]
        gradients = [part.gradients[0] for part in parts]
        optimizer = SimpleNamespace(param_groups=[group])
        together.append(Step(optimizer, parameters, gradients, parts[0].lr))
    told = [
        _one_step(names["model"], names["model"], label.objective, *pair)
        for pair in zip(together, names["windows"], strict=True)
    ]
    return {"steps": told, "max_norm": None}


def unwrapped(model: Any) -> Any:
    """The module inside DDP and ``torch.compile``, in any order."""
    for name in ("_orig_mod", "module", "_orig_mod"):
        model = getattr(model, name, model)
    return model


def _one_step(
    model: nn.Module, called: nn.Module, objective: str, step: Step, window: list[Any]
) -> tuple[list[Tensor], list[float], Tensor]:
    """Of each term, the summed true gradient and the count on this rank; and what was applied."""
    order = {id(p): i for i, p in enumerate(_parameters(step))}
    index = {n.replace("module.", ""): order[id(p)] for n, p in model.named_parameters()}
    leaves = {name: step.parameters[i].double().requires_grad_() for name, i in index.items()}
    call = functools.partial(_call, called, leaves)
    terms = terms_of(objective, call, window)
    applied = _flat(_or_zero(step, i) for i in index.values())
    return [_gradient(loss, leaves) for loss, _ in terms], [count for _, count in terms], applied


def _gradient(loss: Tensor, leaves: dict[str, Tensor]) -> Tensor:
    inputs = list(leaves.values())
    return _flat(
        torch.autograd.grad(
            loss, inputs, retain_graph=True, allow_unused=True, materialize_grads=True
        )
    )


def _call(model: nn.Module, leaves: dict[str, Tensor], *inputs: Tensor) -> Any:
    wide = tuple(each.double() if each.is_floating_point() else each for each in inputs)
    return torch.func.functional_call(model, leaves, wide)


def _or_zero(step: Step, index: int) -> Tensor:
    gradient = step.gradients[index]
    return (torch.zeros_like(step.parameters[index]) if gradient is None else gradient).double()


def _parameters(step: Step) -> list[Tensor]:
    return [p for group in step.optimizer.param_groups for p in group["params"]]


def _flat(tensors: Any) -> Tensor:
    return torch.cat([t.flatten() for t in tensors])


def fault(ranks: list[dict[str, Any]]) -> float:
    """The largest relative error of a step's gradient, over all steps and ranks."""
    return max(_errors(ranks, None))


def fault_at_first(ranks: list[dict[str, Any]]) -> float:
    """The same at the first step, where later ones are compressed with losses."""
    first = [{**rank, "steps": rank["steps"][:1]} for rank in ranks]
    return max(_errors(first, None))


def fault_of_own(ranks: list[dict[str, Any]]) -> float:
    """The same at the first step, where ``windows`` are those of all ranks, and each rank has
    parameters of its own."""
    return max(fault_at_first([rank]) for rank in ranks)


def fault_after_clipping(ranks: list[dict[str, Any]]) -> float:
    """The same, where the gradient of the large batch should have been clipped once."""
    return max(_errors(ranks, ranks[0]["max_norm"]))


def _errors(ranks: list[dict[str, Any]], limit: float | None) -> list[float]:
    errors = []
    for step in itertools.zip_longest(*(rank["steps"] for rank in ranks)):
        each = [told for told in step if told is not None]  # of the ranks that have data left
        terms = zip(*(gradients for gradients, _, _ in each), strict=True)
        counts = zip(*(numbers for _, numbers, _ in each), strict=True)
        true = sum(sum(t) / sum(n) for t, n in zip(terms, counts, strict=True))
        if limit is not None:
            true = true * min(1.0, limit / (float(true.norm()) + 1e-6))
        errors += [float((applied - true).norm() / true.norm()) for _, _, applied in each]
    return errors
