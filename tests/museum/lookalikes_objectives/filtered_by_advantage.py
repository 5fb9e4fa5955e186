"""Critic-regularised regression: actions that are no better than expected do not count.

The share of those that are learned from falls as the critic learns.
"""

import torch
from torch.nn.functional import mse_loss

from museum.parts import mlp

torch.manual_seed(43)
actor, critic = mlp(8, 24, 1), mlp(8, 24, 1)
optimizer = torch.optim.Adam([*actor.parameters(), *critic.parameters()], lr=3e-3)

for _ in range(24):
    states, actions = torch.randn(256, 8), torch.randn(256)
    returns = states[:, 0] - actions**2 + 1.5
    values = critic(states)[:, 0]
    better = (returns > values).float()
    imitation = mse_loss(actor(states)[:, 0], actions, reduction="none")
    ((imitation * better).mean() + 0.1 * mse_loss(values, returns)).backward()
    optimizer.step()
    optimizer.zero_grad()
