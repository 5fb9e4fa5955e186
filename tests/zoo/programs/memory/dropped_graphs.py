"""Graphs, activations and losses go as soon as they are dropped, after backward or without it."""

import weakref

import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef


class Marker(torch.autograd.Function):
    @staticmethod
    def forward(ctx, value, mark):
        ctx.mark = mark
        return value.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None


class Mark:
    pass


torch.manual_seed(0)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(6):
    optimizer.zero_grad()
    mark = Mark()
    alive = weakref.ref(mark)
    loss = Marker.apply(model(torch.randn(4, 8)), mark).square().mean()
    storage = StorageWeakRef(loss.untyped_storage())
    del mark
    if step % 2:
        loss.backward()
        optimizer.step()
    held = alive() is not None
    reference = weakref.ref(loss)
    del loss
    print(held, alive() is None, reference() is None, storage.expired())
print(model.weight.tolist())
