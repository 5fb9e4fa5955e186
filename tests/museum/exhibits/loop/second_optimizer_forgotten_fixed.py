"""A recommender has an optimizer for its embeddings, and the loop steps both."""

import torch
from torch.nn import Embedding
from torch.nn.functional import mse_loss

from museum.parts import mlp

torch.manual_seed(0)
items, model = Embedding(50, 8), mlp(8, 16, 1)
sparse = torch.optim.Adagrad(items.parameters(), lr=0.1)
dense = torch.optim.Adam(model.parameters(), lr=0.01)
trained = [*items.parameters(), *model.parameters()]

for _ in range(60):
    item = torch.randint(50, (32,))
    loss = mse_loss(model(items(item)).squeeze(1), (item % 2).float())
    sparse.zero_grad()
    dense.zero_grad()
    loss.backward()
    dense.step()
    sparse.step()
