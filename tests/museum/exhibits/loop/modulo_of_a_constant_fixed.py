"""The counter runs on."""

import torch
from torch import nn

from museum.parts import mlp

torch.manual_seed(6)
model = mlp(8, 16, 6)
optimizer = torch.optim.RAdam(model.parameters(), lr=1e-2)
criterion = nn.CrossEntropyLoss()
grad_accum_steps = 2
batches = [(torch.randn(10, 8), torch.randint(0, 6, (10,))) for _ in range(12)]
windows = [batches[i : i + grad_accum_steps] for i in range(0, 12, grad_accum_steps)]

for total_steps, (inputs, target) in enumerate(batches):
    loss = criterion(model(inputs), target) / grad_accum_steps
    loss.backward()
    if total_steps % grad_accum_steps == grad_accum_steps - 1:
        optimizer.step()
        optimizer.zero_grad()
