"""A training step whose loss contains torch.func derivatives of the model itself."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)


def solution(point):
    return model(point.view(1, 1)).squeeze()


slope = torch.func.vmap(torch.func.grad(solution))
curvature = torch.func.vmap(torch.func.jacfwd(torch.func.jacrev(solution)))
for _ in range(15):
    points = torch.rand(8)
    optimizer.zero_grad()
    (curvature(points) + slope(points)).square().mean().backward()
    optimizer.step()
print([parameter.tolist() for parameter in model.parameters()])
