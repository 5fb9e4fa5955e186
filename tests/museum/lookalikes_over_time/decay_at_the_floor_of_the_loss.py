"""Fine-tuning of a model that is already as good as the noise allows, with the decay of AdamW."""

import torch
from torch import nn
from torch.nn.functional import mse_loss

torch.manual_seed(0)
model = nn.Linear(8, 1)
truth = torch.randn(8, 1)
with torch.no_grad():
    model.weight.copy_(truth.T)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)

for _ in range(300):
    x = torch.randn(64, 8)
    optimizer.zero_grad()
    mse_loss(model(x), x @ truth + torch.randn(64, 1)).backward()
    optimizer.step()
