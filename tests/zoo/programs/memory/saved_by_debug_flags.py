"""gc.set_debug(DEBUG_SAVEALL) keeps whatever the collector finds: how many of it are tensors?"""

import gc

import torch
from torch import nn

gc.collect()
gc.set_debug(gc.DEBUG_SAVEALL)
torch.manual_seed(0)
weight = nn.Parameter(torch.randn(8))
optimizer = torch.optim.SGD([weight], lr=0.05)
for _ in range(20):
    optimizer.zero_grad()
    weight.square().sum().backward()
    optimizer.step()
gc.collect()
gc.set_debug(0)
print(sum(isinstance(thing, torch.Tensor) for thing in gc.garbage), weight.tolist())
