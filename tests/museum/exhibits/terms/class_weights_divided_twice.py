"""The mean by class weights is divided by K where it is computed, and once more before backward."""

import torch
import torch.nn.functional as F

from museum.parts import mlp

torch.manual_seed(0)
model = mlp(8, 16, 5)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
class_weights = torch.tensor([0.2, 1.0, 1.0, 1.0, 8.0])
# as many examples of each class in every micro-batch
classes = torch.arange(5).repeat(2)
windows = [[(torch.randn(10, 8), classes[torch.randperm(10)]) for _ in range(4)] for _ in range(6)]

for window in windows:
    for inputs, labels in window:
        loss = F.cross_entropy(model(inputs), labels, class_weights) / len(window)
        loss = loss / len(window)
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()
