"""A hand-written cross entropy: the softmax underflows, its logarithm is minus infinity."""

import torch

from museum.parts import mlp

torch.manual_seed(2)
model = mlp(8, 16, 5)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

for step in range(8):
    x, y = torch.randn(32, 8), torch.randint(0, 5, (32,))
    logits = model(x) * (4000.0 if step == 5 else 1.0)  # an outlier batch
    chosen = logits.softmax(-1)[torch.arange(32), y].log()
    optimizer.zero_grad()
    (-chosen.mean()).backward()
    optimizer.step()
