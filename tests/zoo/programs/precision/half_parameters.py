"""Parameters in bfloat16 with master copies in single precision, updated by hand."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(8, 1).bfloat16()
masters = [nn.Parameter(parameter.detach().float()) for parameter in model.parameters()]
optimizer = torch.optim.AdamW(masters, lr=0.01)
for _ in range(20):
    model.zero_grad()
    model(torch.randn(4, 8).bfloat16()).square().mean().backward()
    for master, parameter in zip(masters, model.parameters()):
        master.grad = parameter.grad.float()
    optimizer.step()
    with torch.no_grad():
        for master, parameter in zip(masters, model.parameters()):
            parameter.copy_(master)
print(model.weight.tolist(), masters[0].tolist())
