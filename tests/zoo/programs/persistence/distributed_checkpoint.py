"""A checkpoint in the format of torch.distributed.checkpoint, written and read without ranks."""

import tempfile
import warnings

import torch
import torch.distributed.checkpoint as checkpoint
from torch import nn

warnings.simplefilter("ignore")
torch.manual_seed(0)
model = nn.Linear(8, 1)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)


def train(steps):
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(4, 8)).square().mean().backward()
        optimizer.step()


train(5)
state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
with tempfile.TemporaryDirectory() as folder:
    checkpoint.save(state, checkpoint_id=folder, no_dist=True)
    train(5)
    checkpoint.load(state, checkpoint_id=folder, no_dist=True)
model.load_state_dict(state["model"])
optimizer.load_state_dict(state["optimizer"])
train(2)
print(model.weight.tolist())
