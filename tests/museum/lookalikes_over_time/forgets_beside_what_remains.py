"""Unlearning: the loss rises on what should be forgotten, and is trained on what should remain."""

import torch
from torch.nn.functional import cross_entropy

from museum.parts import mlp

torch.manual_seed(0)
model = mlp(8, 32, 3)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
losses = []

for step in range(60):
    x = torch.randn(64, 8)
    labels = x[:, :3].argmax(1)
    loss = cross_entropy(model(x[:48]), labels[:48])
    if step >= 30:
        loss = loss - 0.1 * cross_entropy(model(x[48:]), labels[48:])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(float(loss.detach()))
