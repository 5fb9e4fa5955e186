"""PPO: mini-batches in parts, a clipped value loss, and an early stop that skips an epoch."""

import torch

from museum.parts import mlp

torch.manual_seed(17)
model = mlp(6, 16, 5)
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)

for _ in range(3):
    states, actions, returns = torch.randn(48, 6), torch.randint(0, 4, (48,)), torch.randn(48)
    with torch.no_grad():
        outputs = model(states)
        old = torch.distributions.Categorical(logits=outputs[:, :4]).log_prob(actions)
        old_values = outputs[:, 4]
        advantages = returns - old_values
    for mini_batch in torch.randperm(48).split(24):
        parts = mini_batch.split(12)
        for part in parts:
            outputs = model(states[part])
            policy = torch.distributions.Categorical(logits=outputs[:, :4])
            ratio = (policy.log_prob(actions[part]) - old[part]).exp()
            gains = torch.min(ratio * advantages[part], ratio.clamp(0.8, 1.2) * advantages[part])
            values, before = outputs[:, 4], old_values[part]
            clipped = before + (values - before).clamp(-0.2, 0.2)
            errors = torch.max((values - returns[part]) ** 2, (clipped - returns[part]) ** 2)
            loss = -gains.mean() + 0.5 * errors.mean() - 0.01 * policy.entropy().mean()
            (loss / len(parts)).backward()
        optimizer.step()
        optimizer.zero_grad()
