"""Random states saved and restored around everything, and one generator for each micro-batch."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(12):
    optimizer.zero_grad()
    for micro in range(3):
        generator = torch.Generator().manual_seed(10 * step + micro)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(step)
            loss = model(torch.randn(4, 8, generator=generator)).square().mean() / 3
        state = torch.get_rng_state()
        loss.backward()
        print(torch.equal(state, torch.get_rng_state()))
    optimizer.step()
    print(torch.rand(1).item())
print(model[0].weight.tolist())
