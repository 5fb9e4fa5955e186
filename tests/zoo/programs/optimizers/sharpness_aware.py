"""SAM: a wrapper around an optimizer that climbs, computes gradients again and descends."""

import torch
from torch import nn


class SAM(torch.optim.Optimizer):
    def __init__(self, params, base, rho=0.05, **settings):
        super().__init__(params, {"rho": rho, **settings})
        self.base = base(self.param_groups, **settings)
        self.param_groups = self.base.param_groups

    @torch.no_grad()
    def step(self, closure=None):
        closure = torch.enable_grad()(closure)
        loss = closure()
        moved = []
        for group in self.param_groups:
            for parameter in group["params"]:
                offset = parameter.grad * group["rho"] / (parameter.grad.norm() + 1e-12)
                parameter.add_(offset)
                moved.append((parameter, offset))
        self.zero_grad()
        closure()
        for parameter, offset in moved:
            parameter.sub_(offset)
        self.base.step()
        return loss


torch.manual_seed(0)
model = nn.Linear(8, 1)
optimizer = SAM(model.parameters(), torch.optim.SGD, lr=0.05, momentum=0.9)
for _ in range(20):
    inputs = torch.randn(8, 8)

    def closure(inputs=inputs):
        loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
        loss.backward()
        return loss

    optimizer.zero_grad()
    optimizer.step(closure)
print(model.weight.tolist())
