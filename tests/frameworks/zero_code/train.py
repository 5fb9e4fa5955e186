"""A plain Hugging Face Trainer script: the same file runs under transformers 4.45 and under 5.

A tiny random Llama, batches of varying length, gradient accumulation. It knows nothing of us.
"""

from __future__ import annotations

import random
import tempfile

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments, set_seed

IGNORED = -100
VOCABULARY = 128


def sequences(count: int) -> list[dict[str, list[int]]]:
    """Token lists whose lengths differ as real documents do."""
    lengths = random.Random(0)
    words = random.Random(1)
    return [
        {"input_ids": [words.randrange(VOCABULARY) for _ in range(lengths.randint(8, 240))]}
        for _ in range(count)
    ]


def collate(rows: list[dict[str, list[int]]]) -> dict[str, torch.Tensor]:
    """Pad on the right; padding is ignored by the loss."""
    longest = max(len(row["input_ids"]) for row in rows)
    batch: dict[str, list[list[int]]] = {"input_ids": [], "attention_mask": [], "labels": []}
    for row in rows:
        ids = row["input_ids"]
        padding = longest - len(ids)
        batch["input_ids"].append(ids + [0] * padding)
        batch["attention_mask"].append([1] * len(ids) + [0] * padding)
        batch["labels"].append(ids + [IGNORED] * padding)
    return {name: torch.tensor(values) for name, values in batch.items()}


def main() -> None:
    """Train for ten optimizer steps."""
    set_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=2,
            max_position_embeddings=256,
        )
    )
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=2,
            gradient_accumulation_steps=4,
            max_steps=10,
            learning_rate=1e-3,
            logging_steps=1,
            save_strategy="no",
            report_to="none",
            use_cpu=True,
        )
        trainer = Trainer(
            model=model, args=arguments, train_dataset=sequences(96), data_collator=collate
        )
        trainer.train()


if __name__ == "__main__":
    main()
