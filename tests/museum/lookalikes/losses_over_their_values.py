"""Each loss is divided by its detached value, so that two tasks pull equally hard."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
body, first, second = nn.Linear(8, 8), nn.Linear(8, 5), nn.Linear(8, 3)
model = nn.ModuleList([body, first, second])
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
K = 4

for _ in range(12):
    for _ in range(K):
        features = torch.tanh(body(torch.randn(16, 8)))
        classes = F.cross_entropy(first(features), torch.randint(0, 5, (16,)))
        values = F.mse_loss(second(features), torch.randn(16, 3))
        ((classes / classes.detach() + values / values.detach()) / K).backward()
    optimizer.step()
    optimizer.zero_grad()
