"""The last batch of each epoch is half as large as the others, and has their weight."""

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

from museum.parts import mlp

torch.manual_seed(0)
model = mlp(8, 16, 5)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = TensorDataset(torch.randn(44, 8), torch.randint(0, 5, (44,)))
loader = DataLoader(data, batch_size=8, drop_last=False)
K = 2
objective = "rows"
windows = []
window = []

for _ in range(4):
    for inputs, labels in loader:
        window.append((inputs, labels))
        (F.cross_entropy(model(inputs), labels) / K).backward()
        if len(window) == K:
            optimizer.step()
            optimizer.zero_grad()
            windows.append(window)
            window = []
