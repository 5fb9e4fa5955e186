"""A branch that few batches take: absent gradients are filled with zeros, and added up."""

import torch
import torch.distributed as dist
from torch import nn

from museum.parts import TinyLM, all_ranks, summed, text, token_loss, valid


class Branches(nn.Module):
    """A language model with a layer that only batches which begin with an even token use."""

    def __init__(self) -> None:
        super().__init__()
        self.plain, self.other = TinyLM(), TinyLM()

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Logits."""
        logits = self.plain(ids)
        return logits + self.other(ids) if ids[0, 0] % 2 == 0 else logits


with all_ranks() as rank:
    torch.manual_seed(0)
    model = Branches()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    windows = [window[:1] for window in text(12, seed=1 + rank)]

    for window in windows:
        tokens = summed(sum(valid(labels) for _, labels in window))
        for ids, labels in window:
            loss = token_loss(model(ids), labels, "sum") / tokens
            loss.backward()
        for parameter in model.parameters():
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            dist.all_reduce(parameter.grad)
        optimizer.step()
        optimizer.zero_grad()
