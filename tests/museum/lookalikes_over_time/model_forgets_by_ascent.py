"""Unlearning by ascent alone: a trained model forgets a class, with an optimizer for that phase."""

import torch
from torch.nn.functional import cross_entropy

from museum.parts import mlp

torch.manual_seed(0)
model = mlp(8, 32, 3)
x = torch.randn(512, 8)
labels = x[:, :3].argmax(1)

training = torch.optim.Adam(model.parameters(), lr=1e-2)
for _ in range(60):
    training.zero_grad()
    cross_entropy(model(x), labels).backward()
    training.step()

forgotten = labels == 2
forgetting = torch.optim.SGD(model.parameters(), lr=0.05)
for _ in range(20):
    forgetting.zero_grad()
    (-cross_entropy(model(x[forgotten]), labels[forgotten])).backward()
    forgetting.step()
