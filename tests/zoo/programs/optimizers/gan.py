"""Two optimizers whose gradients mix: the generator's backward fills the critic's gradients."""

import torch
from torch import nn

torch.manual_seed(0)
generator, critic = nn.Linear(4, 8), nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
first = torch.optim.Adam(generator.parameters(), lr=0.01)
second = torch.optim.Adam(critic.parameters(), lr=0.01)
targets = nn.BCEWithLogitsLoss()
for _ in range(25):
    second.zero_grad()
    fake = generator(torch.randn(8, 4))
    targets(critic(torch.randn(8, 8)), torch.ones(8, 1)).backward()
    targets(critic(fake.detach()), torch.zeros(8, 1)).backward()
    second.step()
    first.zero_grad()
    targets(critic(fake), torch.ones(8, 1)).backward()
    first.step()
print(generator.weight.tolist(), critic[0].weight.tolist())
