"""REINFORCE as in pytorch/examples: the sum of log probabilities times returns, per episode."""

import torch
from torch.distributions import Categorical

from museum.parts import mlp

torch.manual_seed(8)
policy = mlp(4, 16, 2)
optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)

for episode in range(10):
    log_probs, rewards = [], []
    for _ in range(5 + episode % 4 * 3):
        choice = Categorical(logits=policy(torch.randn(4)))
        action = choice.sample()
        log_probs.append(choice.log_prob(action))
        rewards.append(float(action) + 0.1)
    returns = torch.tensor(rewards).flip(0).cumsum(0).flip(0)
    returns = (returns - returns.mean()) / (returns.std() + 1e-6)
    policy_loss = [-log_p * value for log_p, value in zip(log_probs, returns, strict=True)]
    optimizer.zero_grad()
    torch.stack(policy_loss).sum().backward()
    optimizer.step()
