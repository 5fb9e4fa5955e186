"""Q-learning as in Keras: the mask of the action leaves one entry of each row, and a mean over all.

The last batch of an epoch is short.
"""

import torch
from torch.nn.functional import mse_loss, one_hot

from museum.parts import mlp

torch.manual_seed(42)
model = mlp(8, 24, 4)
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)

for size in (32, 32, 32, 20) * 4:
    states, returns = torch.randn(size, 8), torch.randn(size, 1)
    taken = one_hot(torch.randint(0, 4, (size,)), 4)
    errors = mse_loss(model(states), returns.expand(size, 4), reduction="none")
    (errors * taken).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
