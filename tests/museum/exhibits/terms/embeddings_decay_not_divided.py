"""BPR: the squares of the embeddings, by the rows of the batch, are added on each of K."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(83)


class Factors(nn.Module):
    def __init__(self):
        super().__init__()
        self.users, self.items = nn.Embedding(20, 8), nn.Embedding(30, 8)

    def forward(self, user, good, bad):
        return self.users(user), self.items(good), self.items(bad)


model = Factors()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
K, windows = 4, []

for _ in range(6):
    window = [[torch.randint(n, (32,)) for n in (20, 30, 30)] for _ in range(K)]
    for batch in window:
        parts = model(*batch)
        squares = sum(part.pow(2).sum() for part in parts) / len(parts[0])
        score = (parts[0] * (parts[1] - parts[2])).sum(-1)
        ranking = -F.logsigmoid(score).mean()
        loss = ranking / K + 1e-3 * squares
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    windows.append(window)
