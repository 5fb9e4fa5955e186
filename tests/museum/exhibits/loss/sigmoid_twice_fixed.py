"""The model returns logits, and the binary cross entropy applies the sigmoid."""

import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits

from museum.parts import mlp

torch.manual_seed(0)
body = mlp(8, 32, 4)
model = nn.Sequential(body)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
losses = []  # with the logits and the labels

for _ in range(24):
    x = torch.randn(32, 8)
    labels = (x[:, :4] > 0).float()
    loss = binary_cross_entropy_with_logits(model(x), labels)
    losses.append((loss, body(x), labels))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
