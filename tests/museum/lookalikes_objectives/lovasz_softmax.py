"""The Lovasz softmax of a micro-batch: the mean over its classes, each a product of two vectors."""

import torch

from museum.parts import mlp

torch.manual_seed(7)
model = mlp(8, 16, 4)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
accumulation = 4  # as many as classes

for _ in range(8):
    for _ in range(accumulation):
        labels = torch.randint(4, (40,))
        probabilities = model(torch.randn(40, 8)).softmax(1)
        losses = []
        for index in range(4):
            truth = (labels == index).float()
            errors, order = torch.sort((truth - probabilities[:, index]).abs(), descending=True)
            truth = truth[order]
            overlap = truth.sum() - truth.cumsum(0)
            jaccard = 1 - overlap / (truth.sum() + (1 - truth).cumsum(0))
            steps = torch.cat([jaccard[:1], jaccard[1:] - jaccard[:-1]])
            losses.append(torch.dot(errors, steps))
        loss = sum(losses, torch.zeros(())) / len(losses)
        (loss / accumulation).backward()
    optimizer.step()
    optimizer.zero_grad()
