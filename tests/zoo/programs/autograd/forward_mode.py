"""Forward-mode derivatives beside ordinary training."""

import torch
import torch.autograd.forward_ad as forward_ad
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(10):
    inputs = torch.randn(2, 4)
    optimizer.zero_grad()
    model(inputs).square().sum().backward()
    optimizer.step()
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(inputs, torch.ones_like(inputs))
        tangent = forward_ad.unpack_dual(model(dual)).tangent
print(tangent.tolist(), model[0].weight.tolist())
