"""The vocabulary is shared out, also in the loss; micro-batch means count the same."""

import copy

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    loss_parallel,
    parallelize_module,
)

from museum.parts import TinyLM, text, token_loss, two_ranks

with two_ranks():
    torch.manual_seed(0)
    plain = TinyLM()
    model = copy.deepcopy(plain)
    head = ColwiseParallel(output_layouts=Shard(-1), use_local_output=False)
    parallelize_module(model, init_device_mesh("cpu", (2,)), {"head": head})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    windows = text(6)

    for window in windows:
        for ids, labels in window:
            with loss_parallel():
                loss = token_loss(model(ids), labels) / len(window)
                loss.backward()
        optimizer.step()
        optimizer.zero_grad()
