"""A short last batch at K = 1: a noisier step, and no mistake."""

import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from museum.parts import mlp

torch.manual_seed(24)
data = TensorDataset(torch.randn(51, 8), torch.randint(0, 4, (51,)))
loader = DataLoader(data, batch_size=16, shuffle=True)
model = mlp(8, 16, 4)
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)

for _ in range(4):
    for x, y in loader:
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        optimizer.step()
