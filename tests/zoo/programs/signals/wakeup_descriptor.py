"""asyncio's signal handlers, which own the wake-up descriptor, end a training."""

import asyncio
import os
import signal

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


async def main():
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    steps = 0
    while not stop.is_set():
        train(1)
        steps += 1
        if steps == 30:
            os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.sleep(0)
    print("stopped", steps >= 30)


asyncio.run(main())
