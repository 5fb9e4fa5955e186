"""The Hugging Face Trainer on sentences of different lengths. Correct since transformers 4.46.

gradledger check -- python examples/trainer.py
"""

import random
import tempfile

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments, set_seed

STEPS, MICRO_BATCHES, VOCABULARY, IGNORED = 10, 4, 32, -100


def collate(sentences):
    def pad(value):
        return torch.nn.utils.rnn.pad_sequence(sentences, True, padding_value=value)

    return {"input_ids": pad(0), "attention_mask": (pad(-1) >= 0).long(), "labels": pad(IGNORED)}


set_seed(0)
data = [torch.randint(VOCABULARY, (random.randint(4, 60),)) for _ in range(200)]
config = LlamaConfig(
    vocab_size=VOCABULARY,
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=2,
)
with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        output_dir=folder,
        per_device_train_batch_size=3,
        gradient_accumulation_steps=MICRO_BATCHES,
        max_steps=STEPS,
        save_strategy="no",
        report_to="none",
        use_cpu=not torch.cuda.is_available(),
    )
    Trainer(LlamaForCausalLM(config), arguments, collate, data).train()
