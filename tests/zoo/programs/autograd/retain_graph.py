"""Several backwards through one graph, and one too many, which raises."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 8), nn.Sigmoid(), nn.Linear(8, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(10):
    optimizer.zero_grad()
    first, second = model(torch.randn(4, 8)).square().mean(0)
    first.backward(retain_graph=True)
    second.backward(retain_graph=True)
    (first * second).backward()
    try:
        first.backward()
    except RuntimeError as error:
        print(str(error)[:60])
    optimizer.step()
print([parameter.tolist() for parameter in model.parameters()])
