"""A GAN that updates the scaler after each step: each optimizer has its own backward."""

import torch
import torch.nn.functional as F

from museum.parts import mlp

torch.manual_seed(0)
generator, critic = mlp(4, 16, 2), mlp(2, 16, 1)
for_generator = torch.optim.Adam(generator.parameters(), lr=1e-3)
for_critic = torch.optim.Adam(critic.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)
one, zero = torch.ones(16, 1), torch.zeros(16, 1)

for _ in range(12):
    for_critic.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        real, fake = critic(torch.randn(16, 2) + 1), critic(generator(torch.randn(16, 4)).detach())
    loss = F.binary_cross_entropy_with_logits(real.float(), one)
    loss = loss + F.binary_cross_entropy_with_logits(fake.float(), zero)
    scaler.scale(loss).backward()
    scaler.step(for_critic)
    scaler.update()
    for_generator.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        fake = critic(generator(torch.randn(16, 4)))
    scaler.scale(F.binary_cross_entropy_with_logits(fake.float(), one)).backward()
    scaler.step(for_generator)
    scaler.update()
