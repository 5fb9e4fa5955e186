"""A plain Hugging Face Trainer script for one model head, with gradient accumulation.

    python train_head.py BertForSequenceClassification [--fixed]

It does not know gradledger. `--fixed` adds the line that the finding recommends: then the Trainer
divides the loss by the number of micro-batches.
"""

from __future__ import annotations

import sys
import tempfile

from heads import build, samples  # type: ignore[import-not-found]  # beside this script
from transformers import Trainer, TrainingArguments


def main(name: str, fixed: bool) -> None:
    """Train for five optimizer steps of four micro-batches."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=4,
            gradient_accumulation_steps=4,
            max_steps=5,
            logging_steps=1,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            use_cpu=True,
        )
        trainer = Trainer(model=build(name), args=arguments, train_dataset=samples(name, 80))
        if fixed:
            trainer.model_accepts_loss_kwargs = False
        trainer.train()


if __name__ == "__main__":
    main(sys.argv[1], "--fixed" in sys.argv)
