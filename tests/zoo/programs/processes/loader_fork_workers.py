"""A DataLoader with forked workers, that themselves compute gradients."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Samples(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        point = torch.full((8,), float(index), requires_grad=True)
        point.sin().sum().backward()
        return point.detach() / 64, point.grad


torch.manual_seed(0)
model = nn.Linear(8, 8)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for _ in range(2):
    loader = DataLoader(Samples(), batch_size=8, num_workers=2, multiprocessing_context="fork")
    for inputs, targets in loader:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
print(model.weight.tolist())
