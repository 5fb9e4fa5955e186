"""Deterministic algorithms, filled uninitialised memory, and flushed denormals."""

import torch
from torch import nn

torch.manual_seed(0)
torch.use_deterministic_algorithms(True)
torch.utils.deterministic.fill_uninitialized_memory = True
torch.set_flush_denormal(True)
torch.set_float32_matmul_precision("medium")
model = nn.Sequential(nn.Embedding(10, 8), nn.Linear(8, 10))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for _ in range(10):
    tokens = torch.randint(10, (4, 6))
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()
    optimizer.step()
print(torch.are_deterministic_algorithms_enabled(), (torch.tensor(1e-39) * 1).item())
print([parameter.tolist() for parameter in model.parameters()])
