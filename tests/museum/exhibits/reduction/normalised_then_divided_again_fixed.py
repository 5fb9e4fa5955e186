"""DAPO: the objective divides by the window's tokens, the trainer's division is undone."""

from collections.abc import Iterable

import torch
from torch import Tensor

from museum.parts import Batch, TinyLM, text, token_loss, valid


class Trainer:
    """The part of a trainer that accumulates."""

    def __init__(self, model: TinyLM, lr: float) -> None:
        self.model = model
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
        self.gradient_accumulation_steps = 4

    def compute_loss(self, batch: Batch, num_items: int) -> Tensor:
        ids, labels = batch
        loss = token_loss(self.model(ids), labels, reduction="sum") / num_items
        return loss * self.gradient_accumulation_steps

    def training_step(self, batch: Batch, num_items: int) -> None:
        loss = self.compute_loss(batch, num_items) / self.gradient_accumulation_steps
        loss.backward()

    def train(self, steps: Iterable[list[Batch]]) -> None:
        for window in steps:
            num_items = sum(valid(labels) for _, labels in window)
            for batch in window:
                self.training_step(batch, num_items)
            self.optimizer.step()
            self.optimizer.zero_grad()


torch.manual_seed(16)
model = TinyLM()
windows = text(5, seed=2)
Trainer(model, lr=2e-3).train(windows)
