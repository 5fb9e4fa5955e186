"""PPO: four passes over the same rollout, signed advantages, value loss and entropy besides."""

import torch
import torch.nn.functional as F
from torch.distributions import Categorical

from museum.parts import mlp

torch.manual_seed(7)
actor, critic = mlp(6, 16, 3), mlp(6, 16, 1)
optimizer = torch.optim.Adam([*actor.parameters(), *critic.parameters()], lr=1e-3)

for _ in range(3):
    with torch.no_grad():
        states = torch.randn(64, 6)
        policy = Categorical(logits=actor(states))
        actions = policy.sample()
        old = policy.log_prob(actions)
        returns = states[:, 0] * (actions - 1) + 0.1 * torch.randn(64)
        advantages = returns - critic(states).squeeze(1)
        advantages = (advantages - advantages.mean()) / advantages.std()
    for _ in range(4):
        for rows in torch.arange(64).split(16):
            policy = Categorical(logits=actor(states[rows]))
            ratio = (policy.log_prob(actions[rows]) - old[rows]).exp()
            clipped = ratio.clamp(0.8, 1.2)
            gain = torch.min(ratio * advantages[rows], clipped * advantages[rows]).mean()
            value = F.mse_loss(critic(states[rows]).squeeze(1), returns[rows])
            loss = -gain + 0.5 * value - 0.01 * policy.entropy().mean()
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(actor.parameters(), 0.5)
            optimizer.step()
