"""Against the gradient of one large batch: what each step should have applied."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from museum.labels import Label
from museum.parts import IGNORED
from museum.truth.seen import Step

Call = Callable[..., Any]  # the model with a step's parameters
Objective = Callable[[Call, Any], tuple[Tensor, float]]  # of one micro-batch: sum, and count


def tokens(call: Call, batch: Any) -> tuple[Tensor, float]:
    """Cross entropy of every label that counts."""
    ids, labels = batch
    logits = call(ids).flatten(0, -2)
    loss = F.cross_entropy(logits, labels.flatten(), ignore_index=IGNORED, reduction="sum")
    return loss, float((labels != IGNORED).sum())


def squares(call: Call, batch: Any) -> tuple[Tensor, float]:
    """Squared error of every element."""
    inputs, targets = batch
    return F.mse_loss(call(inputs), targets.double(), reduction="sum"), targets.numel()


def distilled(call: Call, batch: Any) -> tuple[Tensor, float]:
    """Half cross entropy, half divergence from the teacher, at every label that counts."""
    ids, labels, teacher = batch
    log_p = F.log_softmax(call(ids), -1)
    counted = labels != IGNORED
    divergence = F.kl_div(log_p[counted], teacher[counted].double(), reduction="sum")
    hard, count = tokens(lambda _: log_p, (ids, labels))
    return 0.5 * hard + 0.5 * divergence, count


def sentence_rows(call: Call, batch: Any) -> tuple[Tensor, float]:
    """The mean of each sentence's token mean."""
    ids, labels = batch
    picked = F.cross_entropy(
        call(ids).flatten(0, 1), labels.flatten(), ignore_index=IGNORED, reduction="none"
    ).view_as(labels)
    return (picked.sum(1) / (labels != IGNORED).sum(1)).sum(), float(len(ids))


def two_heads(call: Call, batch: Any) -> tuple[Tensor, float]:
    """The next token, and a tenth of the one after it."""
    ids, labels, later = batch
    next_one, one_after = call(ids)
    main, count = tokens(lambda _: next_one, (ids, labels))
    auxiliary, others = tokens(lambda _: one_after, (ids, later))
    return main + 0.1 * auxiliary / others * count, count


def peaked(call: Call, batch: Any) -> tuple[Tensor, float]:
    """Cross entropy, and the squared log of what softmax divides by."""
    loss, count = tokens(call, batch)
    return loss + call(batch[0]).logsumexp(-1).square().sum(), count


OBJECTIVES: dict[str, Objective] = {
    f.__name__: f for f in (tokens, squares, distilled, sentence_rows, two_heads, peaked)
}


def tell(label: Label, names: dict[str, Any], steps: list[Step]) -> dict[str, Any]:
    """Reads ``model`` and ``windows``, and ``max_norm`` where there is clipping.

    ``plain`` is the model before its parameters were sharded, if they are.
    """
    model = _unwrapped(names["model"])
    optimizer = steps[0].optimizer
    own = [step for step in steps if step.optimizer is optimizer]
    called = names.get("plain", model)
    pairs = zip(own, names["windows"], strict=True)
    told = [_one_step(model, called, OBJECTIVES[label.objective], *pair) for pair in pairs]
    return {"steps": told, "max_norm": names.get("max_norm")}


def _unwrapped(model: Any) -> Any:
    """The module inside DDP and ``torch.compile``, in any order."""
    for name in ("_orig_mod", "module", "_orig_mod"):
        model = getattr(model, name, model)
    return model


def _one_step(
    model: nn.Module, called: nn.Module, objective: Objective, step: Step, window: list[Any]
) -> tuple[Tensor, float, Tensor]:
    """The summed true gradient of this rank's tokens, their count, and what was applied."""
    order = {id(p): i for i, p in enumerate(_parameters(step))}
    index = {name: order[id(p)] for name, p in model.named_parameters()}
    leaves = {name: step.parameters[i].double().requires_grad_() for name, i in index.items()}
    call = functools.partial(_call, called, leaves)
    parts = [objective(call, batch) for batch in window]
    total = torch.stack([loss for loss, _ in parts]).sum()
    true = torch.autograd.grad(total, list(leaves.values()))
    applied = _flat(_or_zero(step, i) for i in index.values())
    return _flat(true), sum(count for _, count in parts), applied


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


def fault_after_clipping(ranks: list[dict[str, Any]]) -> float:
    """The same, where the gradient of the large batch should have been clipped once."""
    return max(_errors(ranks, ranks[0]["max_norm"]))


def _errors(ranks: list[dict[str, Any]], limit: float | None) -> list[float]:
    errors = []
    for each in zip(*(rank["steps"] for rank in ranks), strict=True):
        true = sum(t for t, _, _ in each) / sum(count for _, count, _ in each)
        if limit is not None:
            true = true * min(1.0, limit / (float(true.norm()) + 1e-6))
        errors += [float((applied - true).norm() / true.norm()) for _, _, applied in each]
    return errors
