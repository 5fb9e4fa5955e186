"""Against the path of the loss scale, and against gradients that were computed in fp16."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from typing import Any

import torch
from torch import Tensor

from museum.labels import Label
from museum.truth.gradient import fault, unwrapped
from museum.truth.objectives import terms_of
from museum.truth.seen import Step

HALF = 2e-2  # what fp16 rounding may do to a gradient


def tell_gradients(label: Label, names: dict[str, Any], steps: list[Step]) -> dict[str, Any]:
    """Reads ``model`` and ``windows``, ``max_norm`` or ``max_value`` where there is clipping.

    The i-th step of every optimizer belongs to the i-th window.
    """
    seen: dict[int, int] = {}
    errors = []
    for step in steps:
        place = seen[id(step.optimizer)] = seen.get(id(step.optimizer), -1) + 1
        together = _same_window(steps, step, place)
        errors.append(_error(label, names, step, together, names["windows"][place]))
    return {"error": max(errors)}


def _same_window(steps: list[Step], step: Step, place: int) -> dict[int, Tensor]:
    """The values that all parameters had in the backwards of this step."""
    values: dict[int, Tensor] = {}
    for optimizer in {id(s.optimizer): s.optimizer for s in steps}.values():
        own = [s for s in steps if s.optimizer is optimizer][place]
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        values |= {id(p): value for p, value in zip(parameters, own.parameters, strict=True)}
    return values


def _error(
    label: Label, names: dict[str, Any], step: Step, values: dict[int, Tensor], window: Any
) -> float:
    gradients, counts, applied = _gradients(label, names, step, values, window)
    true = sum(part / count for part, count in zip(gradients, counts, strict=True))
    assert isinstance(true, Tensor)
    wanted = _clipped(true, names)
    return float((applied - wanted).norm() / wanted.norm())


def _gradients(
    label: Label, names: dict[str, Any], step: Step, values: dict[int, Tensor], window: Any
) -> tuple[list[Tensor], list[float], Tensor]:
    """Of each term, the summed true gradient and the count on this rank; and what was applied."""
    model = unwrapped(names["model"])
    called, parameters = names.get("plain", model), dict(model.named_parameters())
    leaves = {n: values[id(p)].double().requires_grad_() for n, p in parameters.items()}
    call = lambda *inputs: torch.func.functional_call(called, leaves, inputs)  # noqa: E731
    place = {id(p): i for i, p in enumerate(_parameters(step))}
    mine = {n: place[id(p)] for n, p in parameters.items() if id(p) in place}
    terms = terms_of(label.objective, call, window)
    true = [
        torch.autograd.grad(part, [leaves[n] for n in mine], retain_graph=True) for part, _ in terms
    ]
    applied = torch.cat([_gradient(step, i).flatten() for i in mine.values()])
    of_terms = [torch.cat([each.flatten() for each in term]) for term in true]
    return of_terms, [count for _, count in terms], applied


def _parameters(step: Step) -> list[Tensor]:
    return [p for group in step.optimizer.param_groups for p in group["params"]]


def _gradient(step: Step, index: int) -> Tensor:
    gradient = step.gradients[index]
    return (torch.zeros_like(step.parameters[index]) if gradient is None else gradient).double()


def _clipped(gradient: Tensor, names: dict[str, Any]) -> Tensor:
    if "max_value" in names:
        return gradient.clamp(-names["max_value"], names["max_value"])
    return gradient * min(1.0, names.get("max_norm", math.inf) / float(gradient.norm()))


def fault_of_gradients(ranks: list[dict[str, Any]]) -> float:
    """The largest relative error of a step's gradient, beyond what fp16 explains."""
    return max(0.0, *(rank["error"] - HALF for rank in ranks))


def tell_all(label: Label, names: dict[str, Any], steps: list[Step]) -> dict[str, Any]:
    """Of each optimizer's steps, on any number of ranks; None if they are more or fewer than the
    windows."""
    counts = Counter(id(step.optimizer) for step in steps)
    if any(count != len(names["windows"]) for count in counts.values()):
        return {"steps": None}
    seen: Counter[int] = Counter()
    told = []
    for step in steps:
        place = seen[id(step.optimizer)]
        seen[id(step.optimizer)] += 1
        together = _same_window(steps, step, place)
        told.append(_gradients(label, names, step, together, names["windows"][place]))
    return {"steps": told}


def fault_of_all(ranks: list[dict[str, Any]]) -> float:
    """The largest relative error of a step's gradient, of several optimizers."""
    return math.inf if any(rank["steps"] is None for rank in ranks) else fault(ranks)


def tell_path(label: Label, names: dict[str, Any], steps: list[Step]) -> dict[str, Any]:
    """Reads ``windows``, and ``scheduler`` where there is one; the rest is on the tape."""
    tape, scheduler = names["tape"], names.get("scheduler")
    return {
        "scales": tape.scales,
        "updates": tape.updates,
        "windows": len(names["windows"]),
        "steps": len(steps),
        "advances": None if scheduler is None else scheduler.last_epoch,
    }


def fault_of_updates(ranks: list[dict[str, Any]]) -> float:
    """The share of windows after which the scaler was not updated."""
    return max(1 - rank["updates"] / rank["windows"] for rank in ranks)


def fault_of_jumps(ranks: list[dict[str, Any]]) -> float:
    """How many times more than growing (twofold) the scale has jumped up, less one."""
    jumps = [b / a for rank in ranks for a, b in itertools.pairwise(rank["scales"])]
    return max(0.0, max(jumps) / 2 - 1)


def fault_of_collapse(ranks: list[dict[str, Any]]) -> float:
    """Halvings by which the last scale is below one."""
    return max(max(0.0, -math.log2(rank["scales"][-1])) for rank in ranks)


def fault_of_schedule(ranks: list[dict[str, Any]]) -> float:
    """The share of the schedule's advances that no step went with."""
    return max(1 - rank["steps"] / rank["advances"] for rank in ranks)
