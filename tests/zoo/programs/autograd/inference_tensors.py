"""Losses and gradients that are inference tensors where PyTorch allows it."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
with torch.inference_mode():
    data = torch.randn(6, 4, 8)
    scale = torch.tensor(0.5)
for batch in data:
    optimizer.zero_grad()
    loss = model(batch.clone()).square().mean()
    loss.backward(scale.clone())
    with torch.inference_mode():
        for parameter in model.parameters():
            parameter.grad.mul_(0.9)
    optimizer.step()
with torch.inference_mode():
    model.weight.grad = torch.ones_like(model.weight)
    optimizer.step()
print(model.weight.tolist(), model.weight.grad.is_inference())
