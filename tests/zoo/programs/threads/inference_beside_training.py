"""One thread trains while others evaluate a frozen model under no_grad and inference_mode."""

import hashlib
import threading

import torch
from torch import nn

torch.manual_seed(0)
model, frozen = nn.Linear(16, 16), nn.Linear(16, 16)
optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
done = threading.Event()
problems = []


def evaluate(mode):
    inputs = torch.ones(4, 16)
    while not done.is_set():
        with mode():
            if frozen(inputs).requires_grad or torch.is_grad_enabled():
                problems.append(mode.__name__)


threads = [
    threading.Thread(target=evaluate, args=(mode,))
    for mode in (torch.no_grad, torch.inference_mode)
]
for thread in threads:
    thread.start()
for _ in range(150):
    optimizer.zero_grad()
    inputs = torch.randn(8, 16)
    (model(inputs) - inputs).square().mean().backward()
    optimizer.step()
done.set()
for thread in threads:
    thread.join()
print(problems, hashlib.sha256(repr(model.weight.tolist()).encode()).hexdigest())
