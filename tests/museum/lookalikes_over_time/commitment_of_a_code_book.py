"""VQ-VAE: each side of the distance is detached once, and the code passes gradients straight."""

import torch
from torch import nn
from torch.nn.functional import mse_loss

from museum.parts import mlp

torch.manual_seed(0)
model = nn.ModuleDict({"encoder": mlp(8, 16, 4), "decoder": mlp(4, 16, 8)})
codes = model["codes"] = nn.Embedding(16, 4)
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)

for _ in range(24):
    x = torch.randn(32, 8)
    z = model["encoder"](x)
    code = codes(torch.cdist(z, codes.weight).argmin(1))
    rebuilt = model["decoder"](z + (code - z).detach())
    distance = mse_loss(code, z.detach()) + 0.25 * mse_loss(z, code.detach())
    optimizer.zero_grad()
    (mse_loss(rebuilt, x) + distance).backward()
    optimizer.step()
