"""The optimizer of the critic steps from the first step on, and gets gradients later."""

import torch
from torch.nn.functional import binary_cross_entropy_with_logits, mse_loss

from museum.parts import mlp

torch.manual_seed(0)
model, critic = mlp(8, 16, 8), mlp(8, 16, 1)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
opt_critic = torch.optim.Adam(critic.parameters(), lr=0.01)

for step in range(40):
    x = torch.randn(32, 8)
    made = model(x)
    optimizer.zero_grad()
    mse_loss(made, x).backward()
    optimizer.step()
    opt_critic.zero_grad()
    if step >= 25:
        guess = torch.cat([critic(x), critic(made.detach())])
        truth = torch.cat([torch.ones(32, 1), torch.zeros(32, 1)])
        binary_cross_entropy_with_logits(guess, truth).backward()
    opt_critic.step()
