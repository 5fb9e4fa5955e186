"""Coroutines take turns at training in one thread: forward, backward and step interleave."""

import asyncio

import torch
from torch import nn


async def train(seed):
    generator = torch.Generator().manual_seed(seed)
    weight = nn.Parameter(torch.zeros(16))
    optimizer = torch.optim.Adam([weight], lr=0.05)
    for _ in range(30):
        optimizer.zero_grad()
        loss = (weight - torch.randn(16, generator=generator)).square().sum()
        await asyncio.sleep(0)
        loss.backward()
        await asyncio.sleep(0)
        optimizer.step()
    return weight.tolist()


async def main():
    print(await asyncio.gather(*(train(seed) for seed in range(3))))


asyncio.run(main())
