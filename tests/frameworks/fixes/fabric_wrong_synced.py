"""``no_backward_sync`` covers the last micro-batch, and no other."""

import os

import torch
import torch.nn.functional as F
from lightning.fabric import Fabric
from lightning.fabric.plugins.environments import TorchElasticEnvironment
from lightning.fabric.strategies import DDPStrategy

from museum.parts import EVEN, TinyLM, text

os.environ["LOCAL_WORLD_SIZE"] = os.environ["WORLD_SIZE"]
strategy = DDPStrategy(cluster_environment=TorchElasticEnvironment(), process_group_backend="gloo")
fabric = Fabric(accelerator="cpu", devices=2, strategy=strategy)
fabric.launch()
windows = text(4, 1 + fabric.global_rank, EVEN)
torch.manual_seed(0)
model = TinyLM()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
plain = model
model, optimizer = fabric.setup(model, optimizer)


def compute_loss(model, batch):
    """The mean of a micro-batch, divided for the accumulation."""
    ids, labels = batch
    return F.cross_entropy(model(ids).flatten(0, 1), labels.flatten()) / 4


for window in windows:
    for i, batch in enumerate(window):
        last = i == len(window) - 1
        # fix
        with fabric.no_backward_sync(model, enabled=last):
            fabric.backward(compute_loss(model, batch))
        # end
    optimizer.step()
    optimizer.zero_grad()
model = plain
