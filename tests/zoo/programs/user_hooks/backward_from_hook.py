"""A hook of a gradient that computes another model's gradients and steps its optimizer."""

import torch
from torch import nn

torch.manual_seed(0)
model, critic = nn.Linear(8, 1), nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
other = torch.optim.SGD(critic.parameters(), lr=0.05)


def train_critic(gradient):
    with torch.enable_grad():
        other.zero_grad()
        (critic(gradient.detach()) - gradient.detach()).square().mean().backward()
        other.step()


for _ in range(15):
    optimizer.zero_grad()
    outputs = model(torch.randn(4, 8))
    outputs.register_hook(train_critic)
    outputs.square().mean().backward()
    optimizer.step()
print(model.weight.tolist(), critic.weight.tolist())
