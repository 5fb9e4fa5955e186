"""Each epoch creates the optimizer anew, and loads the state of the last one."""

import torch
from torch.nn.functional import mse_loss

from museum.parts import mlp

EPOCHS, BATCHES = 8, 6
torch.manual_seed(0)
model = mlp(8, 16, 2)
state = None

for _ in range(EPOCHS):
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    if state is not None:
        optimizer.load_state_dict(state)
    for _ in range(BATCHES):
        x = torch.randn(32, 8)
        optimizer.zero_grad()
        mse_loss(model(x), x[:, :2].sin()).backward()
        optimizer.step()
    state = optimizer.state_dict()
