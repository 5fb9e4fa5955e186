"""BPR: the squares of the embeddings, by the rows of the batch, are added on each of K."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(83)
users, items = nn.Embedding(20, 8), nn.Embedding(30, 8)
model = nn.ModuleList([users, items])
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
K = 4

for _ in range(6):
    for _ in range(K):
        user, good, bad = (torch.randint(n, (32,)) for n in (20, 30, 30))
        parts = users(user), items(good), items(bad)
        squares = sum(part.pow(2).sum() for part in parts) / len(user)
        score = (parts[0] * (parts[1] - parts[2])).sum(-1)
        ranking = -F.logsigmoid(score).mean()
        loss = ranking / K + 1e-3 * squares
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()
