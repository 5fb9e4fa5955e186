"""A loss of three thousand terms, added one by one and stacked."""

import torch
from torch import nn

torch.manual_seed(0)
weights = nn.ParameterList(nn.Parameter(torch.randn(4)) for _ in range(1500))
optimizer = torch.optim.SGD(weights.parameters(), lr=0.01)
for step in range(3):
    optimizer.zero_grad()
    terms = [weight.square().sum() for weight in weights] + [weight.sum() for weight in weights]
    loss = sum(terms) if step % 2 else torch.stack(terms).sum()
    loss.backward()
    optimizer.step()
print(sum(float(weight.detach().double().sum()) for weight in weights))
