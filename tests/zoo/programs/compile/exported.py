"""torch.export of a model and its loss between training steps."""

import torch
from torch import nn


class WithLoss(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(8, 4)

    def forward(self, inputs, targets):
        return nn.functional.cross_entropy(self.head(inputs), targets)


torch.manual_seed(0)
model = WithLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
targets = torch.arange(4)
for _ in range(5):
    optimizer.zero_grad()
    model(torch.randn(4, 8), targets).backward()
    optimizer.step()
program = torch.export.export(model, (torch.ones(4, 8), targets))
print(program.graph_module.code)
print(program.module()(torch.ones(4, 8), targets).item(), model.head.weight.tolist())
