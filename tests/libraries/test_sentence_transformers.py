"""Losses of sentence-transformers under its own trainer."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from libraries.language import config, sentence, tokenizer
from libraries.torchvision_import import import_torchvision
from libraries.trainers import arguments, collated, loss_of_whole, trained
from libraries.watched import Watched

import_torchvision()
transformers = pytest.importorskip("transformers")
datasets = pytest.importorskip("datasets")
sentence_transformers = pytest.importorskip("sentence_transformers")
from sentence_transformers.sentence_transformer import losses, modules  # noqa: E402


def encoder(folder: Path) -> Any:
    """A BERT of one layer with mean pooling."""
    transformers.set_seed(0)
    sizes = config(transformers.BertConfig, hidden_dropout_prob=0.0)
    sizes.attention_probs_dropout_prob = 0.0
    transformers.BertModel(sizes).save_pretrained(folder / "model")
    tokenizer().save_pretrained(folder / "model")
    words = modules.Transformer(str(folder / "model"))
    return sentence_transformers.SentenceTransformer(modules=[words, modules.Pooling(16)])


def mean_of_micro_batches(trainer: Any, window: list[Any]) -> Tensor:
    """Of a loss that compares the examples of a micro-batch with each other."""
    values = [trainer.compute_loss(trainer.model, collated(trainer, [rows])) for rows in window]
    mean: Tensor = sum(values) / len(values)
    return mean


def run(
    folder: Path, loss: Callable[[Any], Any], *columns: str, whole: Any = loss_of_whole
) -> Watched:
    """Train on made-up sentences, and a score if a column is called so."""
    chosen, model = random.Random(0), encoder(folder)
    rows = [
        {c: chosen.random() if c == "score" else sentence(chosen, 2, 9) for c in columns}
        for _ in range(60)
    ]
    options = sentence_transformers.SentenceTransformerTrainingArguments
    made = sentence_transformers.SentenceTransformerTrainer(
        model=model,
        args=arguments(options, folder, per_device_train_batch_size=4),
        train_dataset=datasets.Dataset.from_list(rows),
        loss=loss(model),
    )
    return trained(made, whole)


def assert_true(watched: Watched, verdict: str) -> None:
    assert watched.answer == (verdict, [])
    assert all(truth.is_true() for truth in watched.truth)


PAIR, SCORED = ("anchor", "positive"), ("sentence1", "sentence2", "score")


@pytest.mark.parametrize(
    ("loss", "columns"),
    [
        ("CosineSimilarityLoss", SCORED),
        ("TripletLoss", (*PAIR, "negative")),
        ("MarginMSELoss", (*PAIR, "negative", "score")),
    ],
)
def test_losses_of_single_examples_are_right(
    tmp_path: Path, loss: str, columns: tuple[str, ...]
) -> None:
    assert_true(run(tmp_path, getattr(losses, loss), *columns), "balanced")


def test_negatives_of_the_own_micro_batch_are_right(tmp_path: Path) -> None:
    watched = run(tmp_path, losses.MultipleNegativesRankingLoss, *PAIR, whole=mean_of_micro_batches)
    assert_true(watched, "balanced")


@pytest.mark.parametrize("loss", ["CoSENTLoss", "AnglELoss"])
def test_one_number_for_all_pairs_counts_its_micro_batch_once(tmp_path: Path, loss: str) -> None:
    watched = run(tmp_path, getattr(losses, loss), *SCORED, whole=mean_of_micro_batches)
    assert_true(watched, "balanced")


def test_cached_gradients_are_not_judged(tmp_path: Path) -> None:
    def cached(model: Any) -> Any:
        return losses.CachedMultipleNegativesRankingLoss(model, mini_batch_size=2)

    assert run(tmp_path, cached, *PAIR, whole=None).answer == ("incomplete", [])
