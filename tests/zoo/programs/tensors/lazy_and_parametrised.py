"""Lazy modules, weight norm, spectral norm, orthogonal parametrisations and pruning."""

import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize, prune

torch.manual_seed(0)
model = nn.Sequential(
    nn.LazyLinear(8),
    parametrizations.weight_norm(nn.Linear(8, 8)),
    parametrizations.spectral_norm(nn.Linear(8, 8)),
    parametrizations.orthogonal(nn.Linear(8, 8)),
    prune.l1_unstructured(nn.Linear(8, 1), "weight", 0.5),
)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for _ in range(10):
    optimizer.zero_grad()
    model(torch.randn(4, 6)).square().mean().backward()
    optimizer.step()
with parametrize.cached():
    print(model(torch.ones(1, 6)).tolist())
print([parameter.tolist() for parameter in model.parameters()])
