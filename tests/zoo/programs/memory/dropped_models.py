"""Drops models, optimizers and gradients, and prints which weak references and storages are dead."""

import gc
import weakref

import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef


def trial(seed):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    for _ in range(3):
        optimizer.zero_grad()
        loss = model(torch.randn(4, 8)).square().mean()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
    objects = [model, optimizer, scheduler, loss, *model.parameters()]
    objects += [parameter.grad for parameter in model.parameters()]
    storages = [tensor.untyped_storage() for tensor in objects if isinstance(tensor, torch.Tensor)]
    watched = [weakref.ref(thing) for thing in objects], [StorageWeakRef(s) for s in storages]
    return loss.item(), *watched


for seed in range(5):
    loss, references, storages = trial(seed)
    gc.collect()
    print(loss, [reference() is None for reference in references])
    print([storage.expired() for storage in storages])
