"""A data loader without drop_last: each batch counts by its rows."""

import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from museum.parts import mlp

torch.manual_seed(6)
data = TensorDataset(torch.randn(117, 8), torch.randint(0, 5, (117,)))
loader = DataLoader(data, batch_size=16)
model = mlp(8, 24, 5)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
accumulation = 4
windows = []

for _ in range(3):
    batches = list(loader)
    for start in range(0, len(batches), accumulation):
        window = batches[start : start + accumulation]
        rows = sum(len(labels) for _, labels in window)
        for inputs, labels in window:
            loss = cross_entropy(model(inputs), labels)
            (loss * len(labels) / rows).backward()
        optimizer.step()
        optimizer.zero_grad()
        windows.append(window)
