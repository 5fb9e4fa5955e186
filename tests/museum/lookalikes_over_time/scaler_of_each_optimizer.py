"""A GAN in fp16 with a GradScaler for each optimizer, each with its own backwards and scale."""

import torch
from torch.nn.functional import binary_cross_entropy_with_logits

from museum.parts import mlp

torch.manual_seed(0)
model, critic = mlp(4, 16, 8), mlp(8, 16, 1)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
opt_critic = torch.optim.Adam(critic.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12, growth_interval=5)
critic_scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8, growth_interval=3)
ones, zeros = torch.ones(32, 1), torch.zeros(32, 1)

for _ in range(20):
    real = torch.randn(32, 8)
    opt_critic.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        made = model(torch.randn(32, 4))
        guess = torch.cat([critic(real), critic(made.detach())])
    loss = binary_cross_entropy_with_logits(guess.float(), torch.cat([ones, zeros]))
    critic_scaler.scale(loss).backward()
    critic_scaler.step(opt_critic)
    critic_scaler.update()
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        guess = critic(made)
    scaler.scale(binary_cross_entropy_with_logits(guess.float(), ones)).backward()
    scaler.step(optimizer)
    scaler.update()
