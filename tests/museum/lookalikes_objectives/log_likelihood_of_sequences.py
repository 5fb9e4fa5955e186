"""The negative log-likelihood of each sequence: a sum over its tokens, then the mean of all."""

import torch
from torch import nn

torch.manual_seed(7)
model = nn.Sequential(nn.Embedding(20, 24), nn.Linear(24, 20))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
accumulation, sequences = 4, 6

for _ in range(8):
    for _ in range(accumulation):
        ids = torch.randint(1, 20, (sequences, 24))
        lengths = torch.randint(6, 24, (sequences, 1))
        counts = torch.arange(23)[None, :] < lengths
        log_probs = model(ids[:, :-1]).log_softmax(-1)
        picked = log_probs.gather(-1, ids[:, 1:, None]).squeeze(-1)
        loss = -(picked * counts).sum(-1).mean()
        (loss / accumulation).backward()
    optimizer.step()
    optimizer.zero_grad()
