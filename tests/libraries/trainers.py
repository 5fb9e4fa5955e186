"""Trainers of transformers, trl and sentence-transformers under the hooks."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor

from helpers.training import recording
from libraries.watched import Steps, Watched

K = 4  # micro-batches of a window
STEPS = 3


def arguments(kind: Any, folder: Any, **more: Any) -> Any:
    """Arguments of a short training on the CPU without clipping."""
    options = {
        "output_dir": str(folder),
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": K,
        "max_steps": STEPS,
        "max_grad_norm": 0.0,
        "learning_rate": 1e-2,
        "lr_scheduler_type": "constant",
        "optim": "sgd",
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": True,
        "bf16": False,
        "logging_steps": 1000,
        "seed": 1,
        "dataloader_pin_memory": False,
        "gradient_checkpointing": False,
    }
    return kind(**options | more)


WholeLoss = Callable[[Any, list[Any]], Tensor]


def collated(trainer: Any, windows: list[Any]) -> Any:
    """All examples of a window, collated as one batch."""
    return trainer._prepare_inputs(trainer.data_collator([row for rows in windows for row in rows]))


def loss_of_whole(trainer: Any, window: list[Any]) -> Tensor:
    """The library's own loss on the examples of a window as one batch."""
    trainer.current_gradient_accumulation_steps = 1
    loss: Tensor = trainer.compute_loss(trainer.model, collated(trainer, window))
    return loss


class Collating:
    """A collator that saves the examples of every batch; in all else the one that it wraps."""

    def __init__(self, collator: Any) -> None:
        self._collator = collator
        self.batches: list[list[Any]] = []

    def __call__(self, rows: list[Any]) -> Any:
        self.batches.append([dict(row) if isinstance(row, dict) else row for row in rows])
        return self._collator(rows)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._collator, name)


def trained(trainer: Any, whole: WholeLoss | None = loss_of_whole) -> Watched:
    """Train under the hooks; compare each step with ``whole``, the loss of the whole window."""
    steps, collator = Steps(trainer.model), trainer.data_collator
    trainer.data_collator = collating = Collating(collator)
    with recording() as recorded:
        create = trainer.create_optimizer

        def created(*args: Any, **kwargs: Any) -> Any:
            optimizer = create(*args, **kwargs)
            steps.attach(optimizer)
            return optimizer

        trainer.create_optimizer = created
        trainer.train()
    trainer.data_collator = collator
    watched = Watched(recorded)
    if whole is None:
        return watched
    begin = 0
    trainer.model.train()
    for step, record in enumerate(recorded.records()):
        window = collating.batches[begin : begin + len(record.micro_batches)]
        begin += len(record.micro_batches)
        watched.truth.append(steps.compare(step, partial(whole, trainer, window)))
    return watched
