"""A GAN: two optimizers, one scaler, one update, and backwards of their own."""

import torch
import torch.nn.functional as F

from museum.parts import mlp

torch.manual_seed(0)
generator, critic = mlp(4, 16, 2), mlp(2, 16, 1)
for_generator = torch.optim.Adam(generator.parameters(), lr=1e-3)
for_critic = torch.optim.Adam(critic.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)

for _ in range(12):
    for_critic.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        real, fake = torch.randn(16, 2) + 1, generator(torch.randn(16, 4)).detach()
        loss = (F.softplus(-critic(real)) + F.softplus(critic(fake))).float().mean()
    scaler.scale(loss).backward()
    scaler.step(for_critic)
    for_generator.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = F.softplus(-critic(generator(torch.randn(16, 4)))).float().mean()
    scaler.scale(loss).backward()
    scaler.step(for_generator)
    scaler.update()
