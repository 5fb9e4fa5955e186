"""A trainer that clears the gradients once per optimizer step."""

import torch
from torch import Tensor

from museum.parts import Batch, TinyLM, text, token_loss, valid


class Trainer:
    """Splits a global batch into micro-batches."""

    def __init__(self) -> None:
        self.model = TinyLM(width=12)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.2, momentum=0.9)

    def forward_backward(self, batch: Batch, tokens: int) -> Tensor:
        ids, labels = batch
        loss = token_loss(self.model(ids), labels, reduction="sum") / tokens
        loss.backward()
        return loss.detach()

    def optimizer_step(self) -> None:
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 100.0)
        self.optimizer.step()
        self.optimizer.zero_grad()


torch.manual_seed(1)
trainer = Trainer()
model = trainer.model
windows = text(5, seed=1)
for microbatches in windows:
    global_tokens = sum(valid(labels) for _, labels in microbatches)
    losses = [trainer.forward_backward(batch, global_tokens) for batch in microbatches]
    trainer.optimizer_step()
