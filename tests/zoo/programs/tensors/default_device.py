"""The default device is meta at times, and the default type double at others."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(8, 1)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
inputs = torch.randn(12, 4, 8)
for step in range(12):
    torch.set_default_device("meta" if step % 3 == 1 else "cpu")
    torch.set_default_dtype(torch.float64 if step % 3 == 2 else torch.float32)
    optimizer.zero_grad()
    model(inputs[step]).square().mean().backward()
    optimizer.step()
    print(torch.zeros(1).device, torch.zeros(1).dtype)
torch.set_default_device(None)
print(model.weight.tolist())
