"""The discriminator wins: the generator's loss grows without bound, which is no divergence."""

import torch
from torch.nn.functional import binary_cross_entropy_with_logits as bce

from museum.parts import mlp

torch.manual_seed(0)
generator, critic = mlp(4, 16, 2), mlp(2, 32, 1)
opt_g = torch.optim.Adam(generator.parameters(), lr=1e-5)
opt_c = torch.optim.Adam(critic.parameters(), lr=0.01)
real, fake = torch.ones(32, 1), torch.zeros(32, 1)

for _ in range(200):
    made = generator(torch.randn(32, 4))
    opt_c.zero_grad()
    data = critic(5 + 0.2 * torch.randn(32, 2))
    (bce(data, real) + bce(critic(made.detach()), fake)).backward()
    opt_c.step()
    opt_g.zero_grad()
    bce(critic(made), real).backward()
    opt_g.step()
