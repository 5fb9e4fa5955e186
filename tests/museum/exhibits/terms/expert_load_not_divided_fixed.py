"""The squared load of the experts is divided by the number of micro-batches."""

import torch
from torch import nn

from museum.parts import TinyLM, text, token_loss, valid


class Mixture(TinyLM):
    """Two experts for each token, chosen by a router."""

    def __init__(self):
        super().__init__()
        self.router = nn.Linear(16, 4)
        self.experts = nn.ModuleList(nn.Linear(16, 16) for _ in range(4))

    def forward(self, ids):
        """Logits, and the probabilities of the router."""
        hidden = self.features(ids)
        probabilities = self.router(hidden).softmax(-1)
        outputs = torch.stack([expert(hidden) for expert in self.experts], -2)
        mixed = hidden + (probabilities.unsqueeze(-1) * outputs).sum(-2)
        return self.head(mixed), probabilities


def uneven_load(probabilities):
    """The sum over experts of the squares of their mean probabilities."""
    return probabilities.mean((0, 1)).square().sum()


torch.manual_seed(14)
model = Mixture()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
windows = text(5, seed=14)

for window in windows:
    tokens = sum(valid(labels) for _, labels in window)
    for ids, labels in window:
        logits, probabilities = model(ids)
        loss = token_loss(logits, labels, "sum") / tokens
        loss = loss + 0.2 * uneven_load(probabilities) / len(window)
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()
