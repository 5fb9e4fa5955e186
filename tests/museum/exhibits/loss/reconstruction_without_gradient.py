"""An auxiliary reconstruction is computed under no_grad and added to the loss."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss

from museum.parts import mlp

torch.manual_seed(0)
model = nn.ModuleDict({"encoder": mlp(8, 32), "head": nn.Linear(32, 3), "decoder": mlp(32, 8)})
optimizer = torch.optim.Adam([*model["encoder"].parameters(), *model["head"].parameters()])
parts = []

for _ in range(24):
    x = torch.randn(32, 8)
    code = model["encoder"](x)
    with torch.no_grad():
        rebuilt = mse_loss(model["decoder"](code), x)
    named = cross_entropy(model["head"](code), x[:, :3].argmax(1))
    parts.append((named, rebuilt))
    optimizer.zero_grad()
    (named + 0.5 * rebuilt).backward()
    optimizer.step()
