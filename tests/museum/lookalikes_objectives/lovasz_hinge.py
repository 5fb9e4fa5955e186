"""The Lovasz hinge of a whole micro-batch: a product of sorted errors and a constant vector."""

import torch
import torch.nn.functional as F

from museum.parts import mlp

torch.manual_seed(7)
model = mlp(8, 16, 1)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
accumulation = 4

for _ in range(8):
    for _ in range(accumulation):
        labels = (torch.rand(40) < 0.4).float()
        logits = model(torch.randn(40, 8)).squeeze(1)
        errors, order = torch.sort(1 - logits * (2 * labels - 1), descending=True)
        truth = labels[order]
        overlap = truth.sum() - truth.cumsum(0)
        jaccard = 1 - overlap / (truth.sum() + (1 - truth).cumsum(0))
        steps = torch.cat([jaccard[:1], jaccard[1:] - jaccard[:-1]])
        loss = torch.dot(F.relu(errors), steps)
        (loss / accumulation).backward()
    optimizer.step()
    optimizer.zero_grad()
