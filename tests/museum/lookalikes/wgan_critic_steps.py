"""WGAN: the critic steps five times as often on a signed mean, and its weights are clamped."""

import torch

from museum.parts import mlp

torch.manual_seed(6)
critic, generator = mlp(2, 24, 1), mlp(4, 16, 2)
critic_optimizer = torch.optim.RMSprop(critic.parameters(), lr=5e-4)
generator_optimizer = torch.optim.RMSprop(generator.parameters(), lr=5e-4)

for iteration in range(25):
    critic_optimizer.zero_grad()
    real = torch.randn(32, 2) * 0.5 + 1
    fake = generator(torch.randn(32, 4)).detach()
    (critic(fake).mean() - critic(real).mean()).backward()
    critic_optimizer.step()
    with torch.no_grad():
        for weight in critic.parameters():
            weight.clamp_(-0.1, 0.1)

    if iteration % 5 == 4:
        generator_optimizer.zero_grad()
        (-critic(generator(torch.randn(32, 4))).mean()).backward()
        generator_optimizer.step()
