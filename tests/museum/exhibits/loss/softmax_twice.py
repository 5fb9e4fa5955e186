"""The model ends with a softmax, and the cross entropy applies another one."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from museum.parts import mlp

torch.manual_seed(0)
body = mlp(8, 32, 3)
model = nn.Sequential(body, nn.Softmax(-1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
losses = []  # with the logits and the labels

for _ in range(24):
    x = torch.randn(32, 8)
    labels = x[:, :3].argmax(1)
    loss = cross_entropy(model(x), labels)
    losses.append((loss, body(x), labels))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
