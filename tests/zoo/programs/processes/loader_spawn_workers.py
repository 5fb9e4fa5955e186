"""A DataLoader with spawned workers."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

if __name__ == "__main__":
    torch.manual_seed(0)
    inputs = torch.randn(32, 8)
    data = TensorDataset(inputs, inputs.sum(1, keepdim=True))
    loader = DataLoader(data, 8, num_workers=1, multiprocessing_context="spawn")
    model = nn.Linear(8, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for batch, targets in loader:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(batch), targets).backward()
        optimizer.step()
    print(model.weight.tolist())
