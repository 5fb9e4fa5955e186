"""The router loss is divided by the number of micro-batches."""

import torch
import torch.nn.functional as F
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


def router_loss(probabilities):
    """Four times the sum over experts of tokens routed there times their mean probability."""
    routed = F.one_hot(probabilities.argmax(-1), 4).float().mean((0, 1))
    return 4 * (routed * probabilities.mean((0, 1))).sum()


torch.manual_seed(12)
model = Mixture()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
windows = text(5, seed=12)

for window in windows:
    tokens = sum(valid(labels) for _, labels in window)
    for ids, labels in window:
        logits, probabilities = model(ids)
        loss = token_loss(logits, labels, "sum") / tokens
        loss = loss + 0.05 * router_loss(probabilities) / len(window)
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()
