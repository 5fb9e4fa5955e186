"""The means of the parts are weighed by their share of the mini-batch."""

import torch

from museum.parts import mlp

torch.manual_seed(44)
model = mlp(6, 16, 4)
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
windows = []


def log_prob(states, actions):
    """Of the actions that were taken."""
    return torch.distributions.Categorical(logits=model(states)).log_prob(actions)


for _ in range(3):
    states, actions = torch.randn(64, 6), torch.randint(0, 4, (64,))
    advantages, old = torch.randn(64), log_prob(states, actions).detach()
    for _ in range(2):
        for mini_batch in torch.randperm(64).split(32):
            window = [
                (states[part], actions[part], old[part], advantages[part])
                for part in mini_batch.split(8)
            ]
            for states_, actions_, old_, advantages_ in window:
                ratio = (log_prob(states_, actions_) - old_).exp()
                clipped = ratio.clamp(0.8, 1.2) * advantages_
                loss = -torch.min(ratio * advantages_, clipped).mean()
                (loss * len(states_) / len(mini_batch)).backward()
            optimizer.step()
            optimizer.zero_grad()
            windows.append(window)
