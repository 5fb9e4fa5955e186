"""Grad modes are switched around forward, backward and step, by every means there is."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(8, 1)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for step in range(12):
    optimizer.zero_grad()
    with torch.set_grad_enabled(step % 2 == 0), torch.enable_grad():
        loss = model(torch.randn(4, 8)).square().mean()
    with torch.no_grad():
        loss.backward()
        optimizer.step()
    torch._C._set_grad_enabled(False)
    frozen = model(torch.randn(1, 8))
    torch._C._set_grad_enabled(True)
    with torch.inference_mode():
        inferred = model(torch.randn(1, 8))
    with torch.inference_mode(), torch.inference_mode(False):
        again = model(torch.randn(1, 8))
    print(frozen.requires_grad, inferred.is_inference(), again.requires_grad)
print(torch.is_grad_enabled(), model.weight.tolist())
