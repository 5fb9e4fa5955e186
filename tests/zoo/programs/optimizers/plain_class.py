"""An optimizer that is no Optimizer and has no param_groups."""

import torch
from torch import nn


class Descent:
    def __init__(self, parameters, lr):
        self.parameters, self.lr = list(parameters), lr

    def zero_grad(self):
        for parameter in self.parameters:
            parameter.grad = None

    @torch.no_grad()
    def step(self):
        for parameter in self.parameters:
            parameter -= self.lr * parameter.grad


torch.manual_seed(0)
model = nn.Linear(8, 1)
optimizer = Descent(model.parameters(), 0.05)
for _ in range(20):
    optimizer.zero_grad()
    (model(torch.randn(4, 8)).square().mean()).backward()
    optimizer.step()
print(model.weight.tolist())
