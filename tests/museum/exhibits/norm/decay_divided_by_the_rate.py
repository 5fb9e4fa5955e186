"""A decay per step is divided by the learning rate, by which AdamW multiplies: 0.1 a step."""

import torch
from torch.nn.functional import cross_entropy

from museum.parts import mlp

torch.manual_seed(0)
model = mlp(12, 48, 48, 4)
lr, decay = 1e-3, 0.1
optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=decay / lr)
truth = torch.randn(12, 4)
losses = []

for _ in range(80):
    x = torch.randn(64, 12)
    optimizer.zero_grad()
    loss = cross_entropy(model(x), (x @ truth + torch.randn(64, 4)).argmax(1))
    loss.backward()
    losses.append(loss.item())
    optimizer.step()
