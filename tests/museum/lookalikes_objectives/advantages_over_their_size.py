"""Policy gradient whose advantages are divided by the sum of their absolute values.

A part of them is negative, so that their sum shows nothing: it is another one in each episode.
"""

import torch

from museum.parts import mlp

torch.manual_seed(47)
policy = mlp(6, 24, 5)
optimizer = torch.optim.SGD(policy.parameters(), lr=0.1)

for _ in range(24):
    steps = int(torch.randint(4, 40, ()))
    states, actions = torch.randn(steps, 6), torch.randint(0, 5, (steps, 1))
    returns = (actions[:, 0] == 2) * 1.0 + states[:, 0]
    advantages = returns - returns.mean()
    likelihoods = torch.log_softmax(policy(states), -1).gather(1, actions)[:, 0]
    (-(likelihoods * advantages / advantages.abs().sum()).sum()).backward()
    optimizer.step()
    optimizer.zero_grad()
