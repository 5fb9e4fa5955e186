"""The norm of the gradient on a batch that is held for it, after every third step, and zeroed."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
model = nn.Linear(8, 5)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
data = TensorDataset(torch.randn(96, 8), torch.randint(0, 5, (96,)))
loader = DataLoader(data, batch_size=8, shuffle=True)
held = torch.randn(10, 8), torch.randint(0, 5, (10,))
norms, steps = [], 0

for _ in range(4):
    for i, (features, classes) in enumerate(loader, start=1):
        (F.cross_entropy(model(features), classes) / 2).backward()
        if i % 2 == 0:
            optimizer.step()
            optimizer.zero_grad()
            steps += 1
            if steps % 3 == 0:
                F.cross_entropy(model(held[0]), held[1]).backward()
                norms.append(model.weight.grad.norm().item())
                model.zero_grad()
