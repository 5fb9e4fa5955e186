"""How large the gradient is that the Trainer applies, in multiples of the true one.

    python true_gradient.py [HEAD ...]

Uses PyTorch and transformers alone. The applied gradient is how far one step of SGD with a learning
rate of 1 moved the weights; the Trainer runs as it is, in float32, with 4 micro-batches of 4
samples. The true one is computed in float64 on all 16 samples as one batch, from the logits of the
model: the mean of the cross entropy over all labels. `factor` is the projection of the one on
the other, `residual` is what remains, as a share of the applied gradient.
"""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
from typing import Any

import torch
import torch.nn.functional as F
import transformers
from heads import HEADS, build, samples  # type: ignore[import-not-found]  # beside this script
from transformers import Trainer, TrainingArguments, default_data_collator

MICRO_BATCHES = 4
SAMPLES = 4


def applied_gradient(name: str, rows: list[dict[str, Any]], fixed: bool) -> torch.Tensor:
    """What the Trainer subtracts from the weights in one step of SGD."""
    model = build(name)
    before = [weight.detach().clone() for weight in model.parameters()]
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=SAMPLES,
            gradient_accumulation_steps=MICRO_BATCHES,
            max_steps=1,
            optim="sgd",
            learning_rate=1.0,
            lr_scheduler_type="constant",
            max_grad_norm=0.0,
            logging_strategy="no",
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            use_cpu=True,
        )
        trainer = Trainer(model=model, args=arguments, train_dataset=rows)
        if fixed:
            trainer.model_accepts_loss_kwargs = False
        with contextlib.redirect_stdout(sys.stderr):  # its summary, so that stdout is JSON
            trainer.train()
    moved = [
        (old.double() - new.detach().double()).flatten()
        for old, new in zip(before, model.parameters(), strict=True)
    ]
    return torch.cat(moved)


def true_gradient(name: str, rows: list[dict[str, Any]]) -> torch.Tensor:
    """The gradient of the mean loss over all labels of the window, in float64."""
    model = build(name).double()
    batch = default_data_collator(rows)
    if "pixel_values" in batch:
        batch["pixel_values"] = batch["pixel_values"].double()
    loss = mean_loss(HEADS[name].task, model(**batch), batch)
    weights = list(model.parameters())
    gradients = torch.autograd.grad(loss, weights, allow_unused=True)
    return torch.cat(
        [
            (torch.zeros_like(weight) if gradient is None else gradient).flatten()
            for weight, gradient in zip(weights, gradients, strict=True)
        ]
    )


def mean_loss(task: str, outputs: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Cross entropy by its definition; the loss that the model returns is not used."""
    if task == "spans":
        start = F.cross_entropy(outputs.start_logits, batch["start_positions"])
        return (start + F.cross_entropy(outputs.end_logits, batch["end_positions"])) / 2
    logits, labels = outputs.logits, batch["labels"]
    if task == "next tokens":
        logits, labels = logits[:, :-1], labels[:, 1:]
    return F.cross_entropy(logits.flatten(0, -2), labels.flatten())


def compare(name: str, fixed: bool = False) -> dict[str, float]:
    """Factor and residual of a head."""
    rows = samples(name, MICRO_BATCHES * SAMPLES)  # one window: their order does not matter
    applied, true = applied_gradient(name, rows, fixed), true_gradient(name, rows)
    factor = float(applied @ true / (true @ true))
    residual = float((applied - factor * true).norm() / applied.norm())
    return {"factor": round(factor, 4), "residual": round(residual, 6)}


def main(names: list[str]) -> None:
    """Print one JSON object: the version of transformers, and each head as it is and fixed."""
    heads = {name: {"plain": compare(name), "fixed": compare(name, fixed=True)} for name in names}
    json.dump({"transformers": transformers.__version__, "heads": heads}, sys.stdout, indent=2)


if __name__ == "__main__":
    main(sys.argv[1:] or list(HEADS))
