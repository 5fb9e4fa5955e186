"""Whole steps on the meta device, and a model that is then brought to life."""

import torch
from torch import nn

with torch.device("meta"):
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
for _ in range(6):
    optimizer.zero_grad()
    loss = model(torch.empty(4, 8, device="meta")).square().mean()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
print(loss.device, model[0].weight.grad.device)
model.to_empty(device="cpu")
torch.manual_seed(0)
for parameter in model.parameters():
    nn.init.normal_(parameter)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for _ in range(6):
    optimizer.zero_grad()
    model(torch.randn(4, 8)).square().mean().backward()
    optimizer.step()
print([parameter.tolist() for parameter in model.parameters()])
