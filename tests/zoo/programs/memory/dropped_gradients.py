"""zero_grad frees gradients at once: the program checks their storages before anything else runs."""

import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)


def storages():
    return [StorageWeakRef(p.grad.untyped_storage()) for p in model.parameters()]


for step in range(8):
    loss = model(torch.randn(4, 8)).square().mean()
    loss.backward()
    before = storages()
    if step % 2:
        optimizer.step()
    optimizer.zero_grad()
    print(step, [storage.expired() for storage in before])
for parameter in model.parameters():
    parameter.grad = torch.ones_like(parameter)
before = storages()
for parameter in model.parameters():
    parameter.grad = None
print([storage.expired() for storage in before], model[0].weight.tolist())
