"""A thread pool runs twenty-four short trainings, four at a time."""

import hashlib
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import nn


def train(seed):
    generator = torch.Generator().manual_seed(seed)
    model = nn.Linear(20, 1)
    nn.init.normal_(model.weight, generator=generator)
    nn.init.zeros_(model.bias)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01 * (1 + seed % 3))
    for _ in range(15):
        optimizer.zero_grad()
        inputs = torch.randn(8, 20, generator=generator)
        nn.functional.mse_loss(model(inputs), inputs.sum(1, keepdim=True)).backward()
        optimizer.step()
    return model.weight.tolist()


with ThreadPoolExecutor(4) as pool:
    weights = list(pool.map(train, range(24)))
print(hashlib.sha256(repr(weights).encode()).hexdigest())
