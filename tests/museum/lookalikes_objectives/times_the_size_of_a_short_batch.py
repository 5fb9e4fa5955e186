"""A detector's loss is a mean times the batch size; the last batch of an epoch has 6 samples."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(22)
model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 5))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
data = TensorDataset(torch.randn(46, 6), torch.randint(0, 5, (46,)), torch.randn(46, 5))
loader = DataLoader(data, batch_size=8, shuffle=True)
ACCUMULATE = 3

for _ in range(4):
    for index, (inputs, labels, boxes) in enumerate(loader, 1):
        outputs = model(inputs)
        loss = 0.5 * F.cross_entropy(outputs, labels) + 0.05 * F.mse_loss(outputs, boxes)
        (loss * len(inputs)).backward()
        if index % ACCUMULATE == 0:
            optimizer.step()
            optimizer.zero_grad()
