"""Large gradients freed between steps: the peak is that of one set of them."""

import torch
from torch import nn

torch.manual_seed(0)
layers = [nn.Parameter(torch.randn(256, 1024) / 32) for _ in range(4)]
optimizer = torch.optim.SGD(layers, lr=0.01)
for _ in range(6):
    hidden = torch.randn(2, 256)
    for layer in layers:
        hidden = (hidden @ layer) @ layer.t() / 8
    hidden.square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
print([float(layer.detach().double().sum()) for layer in layers])
