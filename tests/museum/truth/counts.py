"""Against the number of optimizer steps that there should have been."""

from __future__ import annotations

import itertools
import math
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

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


def tell_by_parameter(label: Label, names: dict[str, Any], steps: list[Step]) -> dict[str, Any]:
    """Whether each parameter had a gradient other than 0, at any step."""
    of_parameters = zip(*(step.gradients for step in steps), strict=True)
    return {"trained": [any(g is not None and bool(g.any()) for g in of) for of in of_parameters]}


def tell_likelihoods(label: Label, names: dict[str, Any], steps: list[Step]) -> dict[str, Any]:
    """Each loss, and the negative log-likelihood of its labels, from the logits in float64."""
    pairs = []
    for loss, outputs, labels in names["losses"]:
        logits = outputs.detach().double()
        if labels.is_floating_point():  # of two classes: the logit of the other one is 0
            logits, labels = torch.stack([torch.zeros_like(logits), logits], -1), labels.long()
        of_label = logits.gather(-1, labels.unsqueeze(-1)).squeeze(-1)
        pairs.append((float(loss), float((logits.exp().sum(-1).log() - of_label).mean())))
    return {"likelihoods": pairs}


def fault_of_likelihoods(ranks: list[dict[str, Any]]) -> float:
    """The largest difference between the two, as a share of the likelihood."""
    return max(abs(loss / right - 1) for loss, right in ranks[0]["likelihoods"])


def fault_of_untrained(ranks: list[dict[str, Any]]) -> float:
    """The share of parameters that never had one."""
    trained = ranks[0]["trained"]
    return 1 - sum(trained) / len(trained)


def tell_last_gradients(label: Label, names: dict[str, Any], steps: list[Step]) -> dict[str, Any]:
    """Which parameters that require a gradient have one, at the first step and at the last."""
    first, last = steps[0], steps[-1]
    groups = last.optimizer.param_groups
    required = [p.requires_grad for group in groups for p in group["params"]]
    pairs = zip(required, first.gradients, last.gradients, strict=True)
    return {
        "first_last": [(a is not None, b is not None) for is_required, a, b in pairs if is_required]
    }


def fault_of_last_gradients(ranks: list[dict[str, Any]]) -> float:
    """The share of them that had one, and have none."""
    pairs = ranks[0]["first_last"]
    return sum(first and not last for first, last in pairs) / len(pairs)


def tell_depth(label: Label, names: dict[str, Any], steps: list[Step]) -> dict[str, Any]:
    """How far the whole training moved each weight, in the order of the model."""
    first, last = steps[0].parameters, [p.detach() for p in names["model"].parameters()]
    weights = [pair for pair in zip(first, last, strict=True) if pair[0].dim() > 1]
    return {"moved": [float((after - before).norm()) for before, after in weights]}


def fault_of_depth(ranks: list[dict[str, Any]]) -> float:
    """1, if the first weight has moved by less than a thousandth of the last but one."""
    moved = ranks[0]["moved"]
    return float(moved[0] < 1e-3 * moved[-2])


def fault_of_unreached(ranks: list[dict[str, Any]]) -> float:
    """The share of steps without any gradient."""
    gradients = ranks[0]["gradients"]
    return sum(not each.any() for each in gradients) / len(gradients)


def fault_of_repeats(ranks: list[dict[str, Any]]) -> float:
    """The share of steps with the gradient of the step before, or its direction, or none."""
    gradients = ranks[0]["gradients"]
    pairs = list(itertools.pairwise(gradients))
    again = [not b.any() or float(F.cosine_similarity(a, b, 0)) > 1 - 1e-6 for a, b in pairs]
    return sum(again) / len(again)


def tell_layers(label: Label, names: dict[str, Any], steps: list[Step]) -> dict[str, Any]:
    """Reads ``windows`` and ``optimizer_of``: one step of every layer's optimizer for each."""
    return {"steps": len(steps) / len(names["optimizer_of"]), "windows": len(names["windows"])}


def tell_leaks(label: Label, names: dict[str, Any], steps: list[Step]) -> dict[str, Any]:
    """Reads the GAN of that name: the discriminator's applied gradients beside its own loss's."""
    own = [step for step in steps if step.optimizer is names["optimizer_D"]]
    pairs = zip(own, names["discriminated"], strict=True)
    return {"errors": [_leak(names["discriminator"], *pair) for pair in pairs]}


def _leak(discriminator: nn.Module, step: Step, images: tuple[Tensor, Tensor]) -> float:
    leaves = [p.clone().requires_grad_() for p in step.parameters]
    named = dict(zip(dict(discriminator.named_parameters()), leaves, strict=True))
    real, fake = (torch.func.functional_call(discriminator, named, (each,)) for each in images)
    loss = (F.softplus(-real).mean() + F.softplus(fake).mean()) / 2
    true = torch.cat([g.flatten() for g in torch.autograd.grad(loss, leaves)])
    applied = torch.cat([g.flatten() for g in step.gradients if g is not None])
    return float((applied - true).norm() / true.norm())


def fault_of_leaks(ranks: list[dict[str, Any]]) -> float:
    """The largest relative error of a discriminator's gradient."""
    return max(ranks[0]["errors"])


def tell_held(label: Label, names: dict[str, Any], steps: list[Step]) -> dict[str, Any]:
    """Reads ``trained``: the parameters that the script means to train."""
    groups = [group for step in steps for group in step.optimizer.param_groups]
    held = {id(p) for group in groups for p in group["params"]}
    return {"held": [id(p) in held for p in names["trained"]]}


def fault_of_held(ranks: list[dict[str, Any]]) -> float:
    """The share of these that no optimizer holds."""
    held = ranks[0]["held"]
    return 1 - sum(held) / len(held)


def tell_modes(label: Label, names: dict[str, Any], steps: list[Step]) -> dict[str, Any]:
    """Reads ``modes``: whether the model is in training mode, at each step."""
    return {"modes": names["modes"]}


def fault_of_modes(ranks: list[dict[str, Any]]) -> float:
    """The share of the steps in evaluation mode."""
    modes = ranks[0]["modes"]
    return 1 - sum(modes) / len(modes)


def tell_parts(label: Label, names: dict[str, Any], steps: list[Step]) -> dict[str, Any]:
    """Reads ``parts``: of each loss, the parts that were added to it."""
    return {"trained": [part.requires_grad for parts in names["parts"] for part in parts]}


def tell_sizes(label: Label, names: dict[str, Any], steps: list[Step]) -> dict[str, Any]:
    """Reads ``losses``, beside the norm of all parameters before each step."""
    norms = [math.hypot(*(float(p.norm()) for p in step.parameters)) for step in steps]
    return {"norms": norms, "losses": names["losses"]}


def fault_of_shrinking(ranks: list[dict[str, Any]]) -> float:
    """The share of their norm, beyond a half, that the parameters lose while the loss stays."""
    norms, losses = ranks[0]["norms"], ranks[0]["losses"]
    stays = median(losses[-10:]) > 0.9 * median(losses[:3])
    return max(0.0, 0.5 - norms[-1] / norms[0]) if stays else 0.0


def tell_moves(label: Label, names: dict[str, Any], steps: list[Step]) -> dict[str, Any]:
    """Elements of the parameters that have a gradient, and those of them that a step changes."""
    moved = total = 0
    for step, after in itertools.pairwise(steps):
        changes = zip(step.parameters, step.gradients, after.parameters, strict=True)
        for before, gradient, now in changes:
            if gradient is not None:
                moved += int(((before != now) & (gradient != 0)).sum())
                total += int((gradient != 0).sum())
    return {"moved": moved, "total": total}


def fault_of_moves(ranks: list[dict[str, Any]]) -> float:
    """The share of elements beyond a half that a step leaves as they are."""
    return max(0.0, 0.5 - ranks[0]["moved"] / ranks[0]["total"])
