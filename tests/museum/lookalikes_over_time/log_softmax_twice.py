"""The model ends with log_softmax, which the cross entropy applies again: that changes nothing."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from museum.parts import mlp

torch.manual_seed(0)
model = nn.Sequential(mlp(8, 32, 3), nn.LogSoftmax(-1))
attention = nn.Sequential(mlp(8, 32, 5), nn.Softmax(-1))
values = nn.Linear(5, 3)
optimizer = torch.optim.Adam(
    [*model.parameters(), *attention.parameters(), *values.parameters()], lr=1e-2
)

for _ in range(24):
    x = torch.randn(32, 8)
    labels = x[:, :3].argmax(1)
    loss = cross_entropy(model(x), labels) + cross_entropy(values(attention(x)), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
