"""The Trainer of transformers: label smoothing, router loss, own losses, heads that ignore K."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from libraries.language import config, llama, mixtral
from libraries.torchvision_import import import_torchvision
from libraries.trainers import K, arguments, trained
from libraries.watched import Watched

import_torchvision()
transformers = pytest.importorskip("transformers")

UNEVEN, MISSING = "reduction.token_weights_unequal", "reduction.missing_division"
IGNORED, VOCABULARY = -100, 48
_random = random.Random(0)
ROWS = [
    {"input_ids": [_random.randint(6, VOCABULARY - 1) for _ in range(_random.randint(3, 24))]}
    for _ in range(60)
]


def padded(rows: list[dict[str, list[int]]]) -> dict[str, Tensor]:
    """A batch of a language model."""
    longest = max(len(row["input_ids"]) for row in rows)
    ids = torch.tensor([row["input_ids"] + [0] * (longest - len(row["input_ids"])) for row in rows])
    mask = (ids != 0).long()
    labels = ids.masked_fill(mask == 0, IGNORED)
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


def masked(rows: list[dict[str, list[int]]]) -> dict[str, Tensor]:
    """Every third token is a target."""
    batch = padded(rows)
    chosen = (batch["input_ids"] * 7 + torch.arange(batch["input_ids"].shape[1])) % 3 == 0
    return batch | {"labels": batch["labels"].masked_fill(~chosen, IGNORED)}


def classes(rows: list[dict[str, list[int]]]) -> dict[str, Tensor]:
    """One of three classes for each sequence."""
    batch = padded(rows)
    return batch | {"labels": batch["input_ids"][:, 0] % 3}


def bert(kind: str, **more: Any) -> Any:
    """A BERT of one layer with a head."""
    transformers.set_seed(0)
    sizes = config(transformers.BertConfig, hidden_dropout_prob=0.0, **more)
    sizes.attention_probs_dropout_prob = 0.0
    return getattr(transformers, kind)(sizes)


def run(
    folder: Path,
    model: Any,
    collate: Callable[..., Any] = padded,
    trainer: Any = None,
    loss: Any = None,
    **more: Any,
) -> Watched:
    """Train a model with a Trainer."""
    options = arguments(transformers.TrainingArguments, folder, remove_unused_columns=False, **more)
    made = (trainer or transformers.Trainer)(
        model=model, args=options, train_dataset=ROWS, data_collator=collate, compute_loss_func=loss
    )
    return trained(made)


def mean_loss(outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
    """The mean over the micro-batch, whatever the window holds."""
    logits = outputs.logits[:, :-1].reshape(-1, VOCABULARY)
    return F.cross_entropy(logits, labels[:, 1:].reshape(-1), ignore_index=IGNORED)


def window_loss(outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
    """The sum over the tokens of the window's number of tokens."""
    logits, targets = outputs.logits[:, :-1].reshape(-1, VOCABULARY), labels[:, 1:].reshape(-1)
    total = F.cross_entropy(logits, targets, ignore_index=IGNORED, reduction="sum")
    count = (targets != IGNORED).sum() if num_items_in_batch is None else num_items_in_batch
    return total / count


def overriding(loss: Any, **members: Any) -> Any:
    """A Trainer with its own ``compute_loss``."""

    def compute_loss(
        self: Any,
        model: Any,
        inputs: Any,
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> Tensor:
        labels = inputs.pop("labels")
        result: Tensor = loss(model(**inputs), labels, num_items_in_batch)
        return result

    return type("Own", (transformers.Trainer,), {"compute_loss": compute_loss, **members})


def stepping(divisor: int) -> Any:
    """A Trainer with its own ``training_step``, which does not pass on the number of tokens."""

    def training_step(self: Any, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
        model.train()
        loss = self.compute_loss(model, self._prepare_inputs(inputs)) / divisor
        self.accelerator.backward(loss)
        result: Tensor = loss.detach()
        return result

    return type("Own", (transformers.Trainer,), {"training_step": training_step})


RIGHT: dict[str, Callable[[Path], Watched]] = {
    "causal": lambda d: run(d, llama()),
    "label smoothing": lambda d: run(d, llama(), label_smoothing_factor=0.1),
    "masked, label smoothing": lambda d: run(
        d, bert("BertForMaskedLM"), masked, label_smoothing_factor=0.1
    ),
    "compute_loss_func": lambda d: run(d, llama(), loss=window_loss),
    "compute_loss": lambda d: run(d, llama(), trainer=overriding(window_loss)),
    "compute_loss, declared": lambda d: run(
        d, llama(), trainer=overriding(window_loss, loss_is_scaled_for_ga=True)
    ),
    "checkpointing": lambda d: run(d, llama(), gradient_checkpointing=True),
}


@pytest.mark.parametrize("program", RIGHT.values(), ids=list(RIGHT))
def test_a_right_program_is_balanced(tmp_path: Path, program: Callable[[Path], Watched]) -> None:
    watched = program(tmp_path)
    assert watched.answer == ("balanced", [])
    assert [finding.rule for finding in watched.evaluation.findings] == []
    assert list(watched.balances().values()) == [pytest.approx(1)]
    assert all(truth.is_true() for truth in watched.truth)


WRONG: dict[str, tuple[Callable[[Path], Watched], list[str], float]] = {
    "compute_loss_func of a mean": (
        lambda d: run(d, llama(), loss=mean_loss), [MISSING, UNEVEN], K,
    ),
    "compute_loss of a mean": (
        lambda d: run(d, llama(), trainer=overriding(mean_loss)), [MISSING, UNEVEN], K,
    ),
    "compute_loss of a mean, declared": (
        lambda d: run(d, llama(), trainer=overriding(mean_loss, loss_is_scaled_for_ga=False)),
        [UNEVEN], 1,
    ),
    "training_step": (lambda d: run(d, llama(), trainer=stepping(1)), [MISSING, UNEVEN], K),
    "training_step, divided": (lambda d: run(d, llama(), trainer=stepping(K)), [UNEVEN], 1),
    "masked": (lambda d: run(d, bert("BertForMaskedLM"), masked), [MISSING, UNEVEN], K),
    "sequence classes": (
        lambda d: run(d, bert("BertForSequenceClassification", num_labels=3), classes),
        [MISSING], K,
    ),
}  # fmt: skip


@pytest.mark.parametrize(("program", "rules", "factor"), WRONG.values(), ids=list(WRONG))
def test_a_wrong_program_is_named(
    tmp_path: Path, program: Callable[[Path], Watched], rules: list[str], factor: float
) -> None:
    watched = program(tmp_path)
    assert watched.answer[1] == rules
    assert list(watched.balances().values()) == [pytest.approx(factor)]
    for truth in watched.truth:
        assert truth.factor == pytest.approx(factor, rel=0.1)
        assert (truth.deviation > 0.01) == (UNEVEN in rules)


def test_the_router_loss_is_not_divided(tmp_path: Path) -> None:
    """A function of the whole micro-batch, times 0.02 and the number of experts, 4."""
    watched = run(tmp_path, mixtral())
    assert watched.answer == ("suspect", [MISSING])
    assert list(watched.balances().values()) == [pytest.approx(1), pytest.approx(K * 0.02 * 4)]
