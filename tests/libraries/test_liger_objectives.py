"""Liger's objectives of preferences, rewards and teachers: their weights, and what is reported.

The truth is the gradient of the same function over all examples of the window in one call. The
chunked objectives are PyTorch. The kernel of the JSD runs in Triton's interpreter; those of the KL
divergence fail in it and are replaced by the same computation.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from helpers.device import DEVICE
from helpers.loops import answer
from helpers.training import Recording, recording
from libraries.torchvision_import import import_torchvision

pytest.importorskip("liger_kernel")
import_torchvision()  # which transformers imports

LENGTH, HIDDEN, CLASSES, IGNORED = 6, 8, 16, -100
SEQUENCES = (4, 8, 6, 2)  # of the micro-batches of a window; an even number: pairs
EVEN = (4, 4, 4, 4)


class Batch(NamedTuple):
    """Sequences: their inputs [B, T, H], labels [B, T], and one reward for each [B]."""

    inputs: Tensor
    labels: Tensor
    rewards: Tensor

    @property
    def tokens(self) -> int:
        return int((self.labels != IGNORED).sum())


class Model(nn.Module):
    """A body, and the head that the objectives project with."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Linear(HIDDEN, HIDDEN), nn.Tanh())
        self.head = nn.Parameter(torch.randn(CLASSES, HIDDEN) / 4)
        self.items = 0  # tokens of the window, for losses that divide by them


Loss = Callable[[Model, Batch], Tensor]


class Objective(NamedTuple):
    """A function of Liger, and what it is a mean of."""

    loss: Loss
    count: Callable[[Batch], int]
    parts: int = 1  # 2 of pairs: the chosen sequences, then the rejected ones


def _batch(sequences: int, generator: torch.Generator) -> Batch:
    inputs = torch.randn(sequences, LENGTH, HIDDEN, generator=generator)
    labels = torch.randint(CLASSES, (sequences, LENGTH), generator=generator)
    ends = torch.randint(2, LENGTH + 1, (sequences, 1), generator=generator)
    labels[torch.arange(LENGTH) >= ends] = IGNORED
    return Batch(inputs, labels, torch.randn(sequences, generator=generator))


def _joined(window: list[Batch], parts: int) -> Batch:
    """All examples as one batch: the first part of each micro-batch, then the second."""
    return Batch(
        *(
            torch.cat([of.chunk(parts)[part] for part in range(parts) for of in field])
            for field in zip(*window, strict=True)
        )
    )


def _chunked(name: str, function: str, **options: Any) -> Any:
    module: Any = import_module(f"liger_kernel.chunked_loss.{name}_loss")
    return getattr(module, f"LigerFusedLinear{function}Loss")(compiled=False, **options)


def _of_pairs(name: str, function: str, **options: Any) -> Objective:
    def loss(model: Model, batch: Batch) -> Tensor:
        of = _chunked(name, function, compute_nll_loss=False, **options)
        value: Tensor = of(model.head, model.body(batch.inputs), batch.labels)[0]
        return value

    return Objective(loss, lambda batch: len(batch.labels) // 2, parts=2)


def _kto(model: Model, batch: Batch) -> Tensor:
    of = _chunked("kto", "KTO", use_ref_model=False)
    value: Tensor = of(
        model.body(batch.inputs), model.head, batch.labels, preference_labels=batch.rewards > 0
    )[0]
    return value


def _grpo(loss_type: str, of_window: bool = False, **options: Any) -> Loss:
    def loss(model: Model, batch: Batch) -> Tensor:
        of = _chunked(
            "grpo",
            "GRPO",
            use_ref_model=False,
            beta=0.0,
            loss_type=loss_type,
            max_completion_length=LENGTH,
            **options,
        )
        mask = (batch.labels != IGNORED).int()
        picked, hidden = batch.labels.clamp_min(0), model.body(batch.inputs)
        items = {"num_items_in_batch": model.items} if of_window else {}
        value: Tensor = of(hidden, model.head, picked, mask, batch.rewards, **items)[0]
        return value

    return loss


def _teacher(name: str, function: str) -> Objective:
    def loss(model: Model, batch: Batch) -> Tensor:
        of, hidden = _chunked(name, function), model.body(batch.inputs).flatten(0, 1)
        teacher = torch.linspace(-1, 1, CLASSES * HIDDEN).reshape(CLASSES, HIDDEN)
        inputs = batch.inputs.flatten(0, 1)
        value: Tensor = of(hidden, model.head, inputs, teacher, batch.labels.flatten())
        return value

    return Objective(loss, lambda batch: batch.tokens)


def _transformers() -> Any:
    return import_module("liger_kernel.transformers")  # not earlier: it imports Triton


def _kl(model: Model, batch: Batch) -> Tensor:
    logs = F.log_softmax(model.body(batch.inputs).flatten(0, 1) @ model.head.T, -1)
    loss: Tensor = _transformers().LigerKLDIVLoss()(
        logs, F.softmax(batch.inputs.flatten(0, 1).repeat(1, 2), -1)
    )
    return loss


def _jsd(model: Model, batch: Batch) -> Tensor:
    logs = F.log_softmax(model.body(batch.inputs).flatten(0, 1) @ model.head.T, -1)
    teacher = F.log_softmax(batch.inputs.flatten(0, 1).repeat(1, 2), -1)
    loss: Tensor = _transformers().LigerJSD(ignore_index=IGNORED)(
        logs, teacher, batch.labels.flatten()
    )
    return loss


@pytest.fixture(autouse=True)
def _divergence_on_cpu(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    if DEVICE != "cpu" or not request.node.name.endswith("[kl]"):
        return
    ops: Any = import_module("liger_kernel.ops.kl_div")

    def forward(logs: Tensor, target: Tensor, reduction: str, **_: Any) -> Tensor:
        return F.kl_div(logs, target, reduction=reduction)

    def backward(target: Tensor, gradient: Tensor, *_: Any) -> Tensor:
        return -target * gradient

    monkeypatch.setattr(ops, "kldiv_forward_triton", forward)
    monkeypatch.setattr(ops, "kldiv_backward_triton", backward)


OBJECTIVES = {
    "dpo": _of_pairs("dpo", "DPO", use_ref_model=False),
    "cpo": _of_pairs("cpo", "CPO"),
    "orpo": _of_pairs("orpo", "ORPO"),
    "simpo": _of_pairs("simpo", "SimPO"),
    "kto": Objective(_kto, lambda batch: len(batch.labels)),
    "grpo": Objective(_grpo("grpo"), lambda batch: len(batch.labels)),
    "dr_grpo": Objective(_grpo("dr_grpo"), lambda batch: len(batch.labels)),
    "bnpo": Objective(_grpo("bnpo"), lambda batch: batch.tokens),
    "dapo": Objective(_grpo("dapo"), lambda batch: batch.tokens),
    "sapo": Objective(_grpo("sapo"), lambda batch: len(batch.labels)),
    "cispo": Objective(_grpo("cispo"), lambda batch: batch.tokens),
    "vespo": Objective(_grpo("vespo"), lambda batch: batch.tokens),
    "jsd of teachers": _teacher("jsd", "JSD"),
    "cosine of teachers": _teacher("cosine_similarity", "CosineSimilarity"),
    "kl": Objective(_kl, lambda batch: batch.labels.numel()),
    "jsd": Objective(_jsd, lambda batch: batch.tokens),
}
UNEQUAL, MISSING = "reduction.token_weights_unequal", "reduction.missing_division"
DOUBLE = "reduction.double_division"


# What a loss is divided by: of its count, that of the window, and K.
Divisor = Callable[[int, int, int], float]


class Run(NamedTuple):
    """What the hooks recorded, and how far each applied gradient is from the true one."""

    recorded: Recording
    off: list[float]


def _train(objective: Objective, sequences: tuple[int, ...], divisor: Divisor) -> Run:
    generator = torch.Generator().manual_seed(1)
    windows = [[_batch(n, generator) for n in sequences] for _ in range(4)]
    model, recorded, off = Model(), Recording(), []
    with recording(recorded):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        for window in windows:
            model.items = total = sum(map(objective.count, window))
            for batch in window:
                loss = objective.loss(model, batch)
                (loss / divisor(objective.count(batch), total, len(window))).backward()
            true = _true_gradient(objective, model, window)
            applied = [p.grad for p in model.parameters() if p.grad is not None]
            differences = [a - b for a, b in zip(applied, true, strict=True)]
            off.append(float(_norm(differences) / _norm(true)))
            optimizer.step()
            optimizer.zero_grad()
    return Run(recorded, off)


def _true_gradient(objective: Objective, model: Model, window: list[Batch]) -> list[Tensor]:
    copied = Model()
    copied.load_state_dict(model.state_dict())
    copied.items = model.items
    loss = objective.loss(copied, _joined(window, objective.parts))
    return list(torch.autograd.grad(loss, list(copied.parameters())))


def _norm(gradients: list[Tensor]) -> Tensor:
    flat = torch.cat([g.flatten() for g in gradients])
    return flat.square().sum().sqrt()


@pytest.mark.parametrize("name", OBJECTIVES)
def test_a_right_share_of_the_window_is_balanced(name: str) -> None:
    run = _train(OBJECTIVES[name], SEQUENCES, lambda count, total, k: total / count)
    assert max(run.off) < 1e-4
    assert answer(run.recorded) == ({}, "balanced")
    facts = run.recorded.facts()[0]
    assert facts.ledger is not None
    assert abs(facts.ledger.balance - 1) < 1e-4


@pytest.mark.parametrize("name", OBJECTIVES)
def test_a_mean_of_unequal_micro_batches_is_named(name: str) -> None:
    run = _train(OBJECTIVES[name], SEQUENCES, lambda count, total, k: k)
    assert min(run.off) > 1e-2
    assert set(answer(run.recorded)[0]) == {UNEQUAL}


@pytest.mark.parametrize("name", ["dpo", "kto", "grpo", "kl"])
def test_a_missing_division_is_named(name: str) -> None:
    run = _train(OBJECTIVES[name], EVEN, lambda count, total, k: 1)
    assert min(run.off) > 1
    assert set(answer(run.recorded)[0]) == {MISSING}


@pytest.mark.parametrize("name", ["dapo", "cispo", "vespo"])
@pytest.mark.parametrize("divided", [False, True])
def test_a_sum_that_is_divided_by_the_tokens_of_the_window(name: str, divided: bool) -> None:
    objective = Objective(_grpo(name, of_window=True), lambda batch: batch.tokens)
    run = _train(objective, SEQUENCES, lambda count, total, k: k if divided else 1)
    assert max(run.off) == pytest.approx(0.75 if divided else 0, abs=1e-4)
    findings, verdict = answer(run.recorded)
    assert set(findings) == ({DOUBLE} if divided else set())
    assert divided or verdict == "balanced"


def test_sequences_that_weigh_as_their_lengths_are_not_measured() -> None:
    objective = Objective(_grpo("luspo"), lambda batch: len(batch.labels))
    run = _train(objective, SEQUENCES, lambda count, total, k: total / count)
    assert answer(run.recorded) == ({}, "incomplete")
    assert "'luspo'" in str(run.recorded.facts()[0].unmeasured)


def test_a_mean_over_tokens_beside_one_over_pairs_is_not_measured() -> None:
    def loss(model: Model, batch: Batch) -> Tensor:
        of = _chunked("orpo", "ORPO")
        value: Tensor = of(model.head, model.body(batch.inputs), batch.labels)[0]
        return value

    objective = Objective(loss, lambda batch: len(batch.labels) // 2, parts=2)
    run = _train(objective, EVEN, lambda count, total, k: k)
    assert answer(run.recorded) == ({}, "incomplete")
    assert "mean over tokens and a mean over pairs" in str(run.recorded.facts()[0].unmeasured)
