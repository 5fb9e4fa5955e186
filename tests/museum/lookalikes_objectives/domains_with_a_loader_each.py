"""The losses of two domains are added: a step takes a batch of each, from loaders of their own."""

import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from museum.parts import mlp

torch.manual_seed(53)
model = mlp(6, 16, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
domains = [
    DataLoader(TensorDataset(torch.randn(96, 6), torch.randint(0, 4, (96,))), 8, shuffle=True)
    for _ in range(2)
]

for batches in zip(*domains, strict=True):
    for inputs, classes in batches:
        cross_entropy(model(inputs), classes).backward()
    optimizer.step()
    optimizer.zero_grad()
