"""Four threads train a model each, at the same time."""

import hashlib
import threading

import torch
from torch import nn

THREADS, STEPS = 4, 60
digests = {}


def train(number):
    generator = torch.Generator().manual_seed(number)
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1))
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.1, generator=generator)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(STEPS):
        optimizer.zero_grad()
        for _ in range(2):
            inputs = torch.randn(16, 32, generator=generator)
            (model(inputs) - inputs.sum(1, keepdim=True)).square().mean().div(2).backward()
        optimizer.step()
    weights = repr([parameter.tolist() for parameter in model.parameters()])
    digests[number] = hashlib.sha256(weights.encode()).hexdigest()


threads = [threading.Thread(target=train, args=(number,)) for number in range(THREADS)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(sorted(digests.items()))
