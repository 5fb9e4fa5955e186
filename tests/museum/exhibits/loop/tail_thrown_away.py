"""optimizer.zero_grad() opens every epoch, and the last batches of the one before are lost."""

import torch
from torch.nn.functional import cross_entropy

from museum.parts import mlp

torch.manual_seed(10)
model = mlp(8, 16, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.937, nesterov=True)
dataset = [(torch.randn(8, 8), torch.randint(0, 4, (8,))) for _ in range(10)]
accumulate, windows = 4, []

for _ in range(4):
    optimizer.zero_grad()
    for i, (images, classes) in enumerate(dataset, start=1):
        loss = cross_entropy(model(images), classes)
        (loss / accumulate).backward()
        if i % accumulate == 0:
            optimizer.step()
            optimizer.zero_grad()
    windows += [dataset[:4], dataset[4:8], dataset[8:]]
