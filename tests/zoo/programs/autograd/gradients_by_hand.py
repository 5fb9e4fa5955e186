"""torch.autograd.grad, whose results are put into .grad."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(8, 1)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
for step in range(30):
    inputs = torch.randn(4, 8)
    loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    for parameter, gradient in zip(model.parameters(), gradients):
        if step % 2 or parameter.grad is None:
            parameter.grad = gradient
        else:
            parameter.grad.copy_(gradient)
    optimizer.step()
print(model.weight.tolist())
