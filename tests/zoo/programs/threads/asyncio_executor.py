"""An event loop that trains two models in its executor and awaits them."""

import asyncio

import torch
from torch import nn


def train(seed):
    generator = torch.Generator().manual_seed(seed)
    weight = nn.Parameter(torch.zeros(16))
    optimizer = torch.optim.Adam([weight], lr=0.05)
    for _ in range(60):
        optimizer.zero_grad()
        (weight - torch.randn(16, generator=generator)).square().sum().backward()
        optimizer.step()
    return weight.tolist()


async def main():
    ticks = 0

    async def tick():
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0.001)

    ticking = asyncio.create_task(tick())
    results = await asyncio.gather(*(asyncio.to_thread(train, seed) for seed in range(2)))
    ticking.cancel()
    print(results, ticks > 0)


asyncio.run(main())
