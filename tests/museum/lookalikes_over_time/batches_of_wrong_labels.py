"""One batch in ten has random labels: the loss jumps and comes back."""

import torch
from torch.nn.functional import cross_entropy

from museum.parts import mlp

torch.manual_seed(0)
model = mlp(8, 32, 5)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

for step in range(300):
    x = torch.randn(32, 8)
    y = torch.randint(5, (32,)) if step % 10 == 9 else x[:, :5].argmax(-1)
    optimizer.zero_grad()
    cross_entropy(model(x), y).backward()
    optimizer.step()
