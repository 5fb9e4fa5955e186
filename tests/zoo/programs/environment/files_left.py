"""Lists what its folders hold after training: nothing but its own file."""

import os
import time

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(8, 1)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)


def train(steps=10):
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()


train()
time.sleep(0.3)
with open("own", "w") as file:
    file.write("mine")
for folder in (".", os.environ["HOME"], os.environ["TMPDIR"]):
    print(sorted(os.listdir(folder)))
print(model.weight.tolist())
