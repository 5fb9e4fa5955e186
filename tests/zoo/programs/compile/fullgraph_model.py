"""A compiled model and a compiled loss, with fullgraph, backward outside."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
compiled = torch.compile(model, fullgraph=True, backend="aot_eager")


@torch.compile(fullgraph=True, backend="aot_eager")
def loss_of(outputs, targets):
    return nn.functional.mse_loss(outputs, targets)


optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for _ in range(10):
    inputs = torch.randn(4, 8)
    optimizer.zero_grad()
    loss_of(compiled(inputs), inputs.sum(1, keepdim=True)).backward()
    optimizer.step()
print([parameter.tolist() for parameter in model.parameters()])
