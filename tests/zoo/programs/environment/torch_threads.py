"""The number of torch's threads is changed while it trains."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(8, 1)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)


def train(steps=10):
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()


for threads in (1, 2, 3, 1):
    torch.set_num_threads(threads)
    train(5)
    print(torch.get_num_threads())
print(model.weight.tolist())
