"""REINFORCE over five episodes: the average of their sums. A step may have an advantage of 0."""

import torch
from torch.distributions import Categorical

from museum.parts import mlp

torch.manual_seed(0)
policy = mlp(3, 16, 2)
optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)
EPISODES = 5

for _ in range(24):
    for _ in range(EPISODES):
        states = torch.randn(int(torch.randint(3, 12, ())), 3)
        choice = Categorical(logits=policy(states))
        actions = choice.sample()
        rewards = (actions == (states[:, 0] > 0)).float()
        returns = rewards.flip(0).cumsum(0).flip(0)
        advantages = returns - returns.mean()  # of an episode of equal returns: all 0
        (-(choice.log_prob(actions) * advantages).sum() / EPISODES).backward()
    optimizer.step()
    optimizer.zero_grad()
