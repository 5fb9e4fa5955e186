"""A2C: advantages of both signs, half a squared error, and an entropy bonus."""

import torch
import torch.nn.functional as F

from museum.parts import mlp

torch.manual_seed(13)
model = mlp(8, 16, 5)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
accumulation = 4

for _ in range(8):
    for _ in range(accumulation):
        states, actions, returns = torch.randn(16, 8), torch.randint(0, 4, (16,)), torch.randn(16)
        outputs = model(states)
        policy, values = torch.distributions.Categorical(logits=outputs[:, :4]), outputs[:, 4]
        advantages = (returns - values).detach()
        gain = (policy.log_prob(actions) * advantages).mean()
        loss = -gain + 0.5 * F.mse_loss(values, returns) - 0.01 * policy.entropy().mean()
        (loss / accumulation).backward()
    optimizer.step()
    optimizer.zero_grad()
