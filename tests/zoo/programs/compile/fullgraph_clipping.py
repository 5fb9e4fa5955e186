"""clip_grad_norm_ compiled with fullgraph."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
clip = torch.compile(nn.utils.clip_grad_norm_, fullgraph=True, backend="eager")
for _ in range(6):
    optimizer.zero_grad()
    model(torch.randn(4, 8)).square().mean().backward()
    print(clip(list(model.parameters()), 1.0).item())
    optimizer.step()
print(model.weight.tolist())
