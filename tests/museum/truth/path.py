"""Against the path that a run should have taken: its learning rates, batch sizes and norms."""

from __future__ import annotations

import itertools
import math
from statistics import median
from typing import Any

import torch

from museum.labels import Label
from museum.truth.seen import Step


def tell_rates(label: Label, names: dict[str, Any], steps: list[Step]) -> dict[str, Any]:
    """Reads ``planned``: the rate at which step ``i`` should run."""
    planned = [names["planned"](i) for i in range(len(steps))]
    return {"seen": [s.lr for s in steps], "planned": planned}


def fault_of_rates(ranks: list[dict[str, Any]]) -> float:
    """The largest departure from the plan, relative to the plan's highest rate."""
    seen, planned = ranks[0]["seen"], ranks[0]["planned"]
    return max(abs(s - p) for s, p in zip(seen, planned, strict=True)) / max(planned)


def tell_samples(label: Label, names: dict[str, Any], steps: list[Step]) -> dict[str, Any]:
    """Reads ``windows``: rows per step, beside the rate of the step."""
    rows = [sum(len(batch[0]) for batch in window) for window in names["windows"]]
    return {"rows": rows, "rates": [s.lr for s in steps]}


def fault_of_scaling(ranks: list[dict[str, Any]]) -> float:
    """How far the rate per root of the batch size (or the batch size itself) moves, the lesser."""
    rows, rates = ranks[0]["rows"], ranks[0]["rates"]
    pairs = list(zip(rates, rows, strict=True))
    return min(_moves([rate / n**power for rate, n in pairs]) for power in (0.5, 1))


def _moves(values: list[float]) -> float:
    return max(values) / min(values) - 1


def tell_norms(label: Label, names: dict[str, Any], steps: list[Step]) -> dict[str, Any]:
    """Reads ``max_norm`` where there is one: the norm of each applied gradient."""
    norms = [_norm(step) for step in steps]
    return {"norms": norms, "max_norm": names.get("max_norm"), "weights": _finite(steps[-1])}


def _norm(step: Step) -> float:
    return math.hypot(*(float(g.double().norm()) for g in step.gradients if g is not None))


def _finite(step: Step) -> bool:
    return all(bool(torch.isfinite(p).all()) for p in step.parameters)


def fault_of_growth(ranks: list[dict[str, Any]]) -> float:
    """Decades by which the norm ends above ten times its largest early value; 0 below."""
    norms = ranks[0]["norms"]
    early = max(norms[: max(3, len(norms) // 4)])
    return max(0.0, math.log10(max(norms[-3:]) / early / 10)) if math.isfinite(norms[-1]) else 1.0


def fault_of_decay(ranks: list[dict[str, Any]]) -> float:
    """Decades by which the norm ends below a thousandth of its early median; 0 above."""
    norms = sorted(ranks[0]["norms"][:10])
    return max(0.0, math.log10(norms[len(norms) // 2] * 1e-3 / max(1e-300, ranks[0]["norms"][-1])))


def fault_of_jump(ranks: list[dict[str, Any]]) -> float:
    """Decades by which the largest norm lies above ten times the median; 0 below."""
    norms = sorted(ranks[0]["norms"])
    return max(0.0, math.log10(norms[-1] / norms[len(norms) // 2] / 10))


def fault_of_nonfinite(ranks: list[dict[str, Any]]) -> float:
    """The share of steps that applied inf or nan."""
    norms = ranks[0]["norms"]
    return sum(not math.isfinite(n) for n in norms) / len(norms)


def fault_of_limit(ranks: list[dict[str, Any]]) -> float:
    """By how much more than 95 % of the steps sit at the clipping limit."""
    norms, limit = ranks[0]["norms"], ranks[0]["max_norm"]
    return max(0.0, sum(n >= limit * 0.999 for n in norms) / len(norms) - 0.95)


def tell_losses(label: Label, names: dict[str, Any], steps: list[Step]) -> dict[str, Any]:
    """Reads ``losses``: the loss of each step."""
    return {"losses": names["losses"]}


def fault_of_loss(ranks: list[dict[str, Any]]) -> float:
    """How far the median of the last losses lies above the middle of the start and the best."""
    losses = ranks[0]["losses"]
    start, last = median(losses[:5]), median(losses[-10:])
    best = min(median(losses[i : i + 10]) for i in range(0, len(losses), 10))
    return max(0.0, last / (0.5 * (start + best)) - 1)


def tell_moments(label: Label, names: dict[str, Any], steps: list[Step]) -> dict[str, Any]:
    """Each update, and that of one optimizer of the same class which gets all the gradients."""
    own = [p.clone().requires_grad_() for p in steps[0].parameters]
    only = type(steps[0].optimizer)(own, **steps[0].optimizer.defaults)
    updates = []
    for step, after in itertools.pairwise(steps):
        for parameter, before, gradient in zip(own, step.parameters, step.gradients, strict=True):
            parameter.data, parameter.grad = before.clone(), gradient
        only.step()
        pairs = zip(own, step.parameters, after.parameters, strict=True)
        updates.append([(now - before, p.detach() - before) for p, before, now in pairs])
    return {"updates": updates}


def fault_of_moments(ranks: list[dict[str, Any]]) -> float:
    """The largest relative difference between both."""
    differences = [
        math.hypot(*(float((a - b).norm()) for a, b in update))
        / math.hypot(*(float(b.norm()) for _, b in update))
        for update in ranks[0]["updates"]
    ]
    return max(differences)
