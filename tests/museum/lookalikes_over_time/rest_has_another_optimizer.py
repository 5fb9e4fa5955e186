"""The head is held by a second optimizer, which begins to step when the body has settled."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from museum.parts import mlp

torch.manual_seed(0)
model = nn.Sequential(mlp(8, 32, 32), nn.Linear(32, 3))
optimizer = torch.optim.Adam(model[0].parameters(), lr=1e-3)
late = torch.optim.SGD(model[1].parameters(), lr=1e-2)

for step in range(1, 49):
    x = torch.randn(32, 8)
    model.zero_grad()
    cross_entropy(model(x), x[:, :3].argmax(1)).backward()
    optimizer.step()
    if step > 32:
        late.step()
