"""An actor and a critic share one backward; the critic steps every time, the actor every second."""

import torch
import torch.nn.functional as F

from museum.parts import mlp

torch.manual_seed(27)
critic, actor = mlp(6, 16, 1), mlp(4, 16, 2)
critic_optimizer = torch.optim.Adam(critic.parameters(), lr=1e-3)
actor_optimizer = torch.optim.Adam(actor.parameters(), lr=3e-4)

for step in range(12):
    state, action = torch.randn(32, 4), torch.randn(32, 2)
    reward = -(state[:, :2] - action).square().sum(1, keepdim=True)
    critic_loss = F.mse_loss(critic(torch.cat([state, action], 1)), reward)
    critic_optimizer.zero_grad()
    critic_loss.backward()
    critic_optimizer.step()
    if step % 2:
        for p in critic.parameters():
            p.requires_grad_(False)
        actor_optimizer.zero_grad()
        (-critic(torch.cat([state, torch.tanh(actor(state))], 1)).mean()).backward()
        actor_optimizer.step()
        for p in critic.parameters():
            p.requires_grad_(True)
