"""An optimizer's step, alone and with a scheduler, in a compiled function."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=torch.tensor(0.05))


@torch.compile(backend="eager", fullgraph=False)
def step():
    optimizer.step()


for _ in range(6):
    optimizer.zero_grad()
    model(torch.randn(4, 8)).square().mean().backward()
    step()
print(model.weight.tolist())
