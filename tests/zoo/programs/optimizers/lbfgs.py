"""LBFGS with line search: many backwards in one step."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
inputs = torch.randn(32, 4)
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, line_search_fn="strong_wolfe")


def closure():
    optimizer.zero_grad()
    loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
    loss.backward()
    return loss


print([float(optimizer.step(closure)) for _ in range(6)])
print([parameter.tolist() for parameter in model.parameters()])
