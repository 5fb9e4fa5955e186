"""Adam whose moments are kept in eight bits, written by hand."""

import torch
from torch import nn


def packed(tensor):
    scale = tensor.abs().max().clamp(min=1e-12) / 127
    return (tensor / scale).round().to(torch.int8), scale


class Adam8bit(torch.optim.Optimizer):
    def __init__(self, params, lr=1e-2):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                if not state:
                    state["first"] = packed(torch.zeros_like(parameter))
                    state["second"] = packed(torch.zeros_like(parameter))
                first, second = (codes.float() * scale for codes, scale in state.values())
                first.lerp_(parameter.grad, 0.1)
                second.lerp_(parameter.grad.square(), 0.01)
                parameter.addcdiv_(first, second.sqrt() + 1e-3, value=-group["lr"])
                state["first"], state["second"] = packed(first), packed(second)


torch.manual_seed(0)
model = nn.Linear(8, 4)
optimizer = Adam8bit(model.parameters())
for _ in range(25):
    optimizer.zero_grad()
    model(torch.randn(4, 8)).square().mean().backward()
    optimizer.step()
print(model.weight.tolist())
