"""The gradients that a generator leaves in the discriminator are not zeroed."""

import torch
from torch.nn.functional import binary_cross_entropy_with_logits

from frameworks.fixes.fabric_parts import start
from museum.parts import mlp

evidence = "leak"
fabric = start()
torch.manual_seed(0)
generator, discriminator = mlp(4, 16, 2), mlp(2, 16, 1)
optimizer_G = torch.optim.Adam(generator.parameters(), lr=1e-3)
optimizer_D = torch.optim.Adam(discriminator.parameters(), lr=1e-3)
generating, optimizer_G = fabric.setup(generator, optimizer_G)
judged, optimizer = fabric.setup(discriminator, optimizer_D)
ones, zeros = torch.ones(32, 1), torch.zeros(32, 1)
discriminated = []

for _ in range(8):
    real = torch.randn(32, 2) * 0.3 + torch.tensor([1.0, -1.0])
    fake = generating(torch.randn(32, 4))
    optimizer_G.zero_grad()
    fabric.backward(binary_cross_entropy_with_logits(judged(fake), ones))
    optimizer_G.step()
    # fix: before this optimizer's first backward of a window, after those of other losses
    # end
    real_loss = binary_cross_entropy_with_logits(judged(real), ones)
    fake_loss = binary_cross_entropy_with_logits(judged(fake.detach()), zeros)
    fabric.backward((real_loss + fake_loss) / 2)
    optimizer.step()
    discriminated.append((real, fake.detach()))
