"""PPO: several epochs over one rollout, in minibatches of one fixed split."""

import torch
import torch.nn.functional as F

from museum.parts import mlp

torch.manual_seed(0)
policy = mlp(4, 16, 3)
optimizer = torch.optim.Adam(policy.parameters(), lr=3e-3)

for _ in range(4):
    states = torch.randn(32, 4)
    with torch.no_grad():
        before = F.log_softmax(policy(states), -1)
    actions = torch.multinomial(before.exp(), 1)
    old = before.gather(1, actions)
    advantages = torch.randn(32, 1)
    for _ in range(4):
        for part in torch.arange(32).split(8):
            new = F.log_softmax(policy(states[part]), -1).gather(1, actions[part])
            ratio = (new - old[part]).exp()
            clipped = ratio.clamp(0.8, 1.2)
            loss = -torch.min(ratio * advantages[part], clipped * advantages[part]).mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
