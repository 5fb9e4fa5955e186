"""Backward itself is compiled."""

import torch
from torch import nn

torch._dynamo.config.compiled_autograd = True
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)


@torch.compile(backend="eager")
def train(inputs):
    loss = model(inputs).square().mean()
    loss.backward()
    return loss


for _ in range(5):
    optimizer.zero_grad()
    print(train(torch.randn(4, 8)).item())
    optimizer.step()
print([parameter.tolist() for parameter in model.parameters()])
