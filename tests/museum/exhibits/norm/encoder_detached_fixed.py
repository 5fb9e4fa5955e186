"""The features of the encoder reach the loss, and a copy of them is measured."""

import torch
from torch.nn.functional import cross_entropy

from museum.parts import mlp

torch.manual_seed(0)
encoder, head = mlp(8, 16, 16), mlp(16, 16, 4)
optimizer = torch.optim.AdamW([*encoder.parameters(), *head.parameters()], lr=0.01)

for _ in range(40):
    x = torch.randn(32, 8)
    y = x[:, :4].argmax(1)
    optimizer.zero_grad()
    features = encoder(x)
    cross_entropy(head(features), y).backward()
    optimizer.step()
