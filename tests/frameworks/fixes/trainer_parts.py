"""A tiny Llama, texts for it, and arguments for a Trainer of four steps."""

from __future__ import annotations

import tempfile
from typing import Any

import torch
import transformers
from torch import Tensor, nn

from museum.parts import EVEN, RAGGED, Batch, text

K, STEPS = 4, 4


class Logits(nn.Module):
    """The logits of a causal language model for each next token."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor) -> Tensor:
        """Logits [rows, length - 1, vocabulary]."""
        logits: Tensor = self.model(input_ids=ids).logits
        return logits[:, :-1]


def llama() -> Any:
    """Two layers of random weights."""
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=32,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=2,
            max_position_embeddings=64,
        )
    )


def gpt2() -> Any:
    """One layer of random weights, without dropout."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 32, "n_positions": 64, "n_embd": 16, "n_layer": 1, "n_head": 2}
    dropout = {"embd_pdrop": 0.0, "attn_pdrop": 0.0, "resid_pdrop": 0.0}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, **dropout))


def windows(even: bool, rank: int = 0) -> list[list[Batch]]:
    """Micro-batches of token ids and labels; the model shifts these."""
    shifted = text(STEPS, rank, EVEN if even else RAGGED)
    return [list(window) for window in shifted]


def windows_of_ranks(even: bool, ranks: int = 2) -> list[list[Batch]]:
    """The micro-batches of all ranks, in the order in which a Trainer distributes them."""
    of_ranks = [windows(even, rank) for rank in range(ranks)]
    return [
        [each for together in zip(*of_window, strict=True) for each in together]
        for of_window in zip(*of_ranks, strict=True)
    ]


def true_windows(batches: list[list[Batch]]) -> list[list[Batch]]:
    """The same with the labels of the next tokens."""
    return [[(ids, labels[:, 1:]) for ids, labels in window] for window in batches]


def options(model: Any, batches: list[list[Batch]], **more: Any) -> dict[str, Any]:
    """Arguments of a Trainer that takes the micro-batches in order, each as one row."""
    arguments = transformers.TrainingArguments(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=1,
        gradient_accumulation_steps=K,
        max_steps=STEPS,
        max_grad_norm=0.0,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
        **more,
    )
    rows = [{"input_ids": ids, "labels": labels} for window in batches for ids, labels in window]
    return {
        "model": model,
        "args": arguments,
        "train_dataset": rows,
        "data_collator": lambda batch: batch[0],
    }


class InOrder(transformers.Trainer):
    """A Trainer that does not shuffle."""

    def _get_train_sampler(self, *_: Any) -> Any:
        return torch.utils.data.SequentialSampler(self.train_dataset)
