"""Pickles what people put into configurations: functions of torch, bound methods, partials."""

import functools
import pickle

import torch
from torch import nn

weight = nn.Parameter(torch.ones(4))
optimizer = torch.optim.SGD([weight], lr=0.1)
for _ in range(3):
    optimizer.zero_grad()
    weight.square().sum().backward()
    optimizer.step()
things = [
    torch.autograd.backward,
    torch.Tensor.backward,
    torch.optim.SGD,
    torch.optim.Optimizer.__init__,
    nn.utils.clip_grad_norm_,
    nn.functional.cross_entropy,
    nn.CrossEntropyLoss,
    functools.partial(nn.functional.mse_loss, reduction="sum"),
    functools.partial(nn.utils.clip_grad_norm_, max_norm=1.0),
    torch.amp.GradScaler,
    torch.optim.lr_scheduler.StepLR.step,
    torch.utils.data.DataLoader,
]
for thing in things:
    try:
        data = pickle.dumps(thing)
    except Exception as error:
        print(type(error).__name__, error)
        continue
    print(data, pickle.loads(data) is thing or isinstance(thing, functools.partial))
