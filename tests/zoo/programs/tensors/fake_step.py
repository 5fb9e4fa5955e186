"""Dry runs of whole steps on fake tensors, while the program also trains for real."""

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

torch.manual_seed(0)
model = nn.Linear(8, 1)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)


def train(model, optimizer):
    optimizer.zero_grad()
    loss = model(torch.randn(4, 8)).square().mean()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return loss


for _ in range(12):
    for _ in range(4):
        train(model, optimizer)
    with FakeTensorMode():
        fake = nn.Linear(8, 1)
        fake_optimizer = torch.optim.Adam(fake.parameters(), lr=0.01)
        for _ in range(4):
            loss = train(fake, fake_optimizer)
        print(type(loss).__name__, type(fake.weight.grad).__name__, fake.weight.shape)
print(model.weight.tolist())
