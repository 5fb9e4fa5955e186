"""Each micro-batch is divided by K."""

import torch
import torch.nn.functional as F

from museum.parts import mlp

K = 4
torch.manual_seed(0)
model = mlp(8, 16, 5)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu")
windows = [[(torch.randn(K, 8), torch.randint(0, 5, (K,))) for _ in range(K)] for _ in range(8)]


def soft_target_loss(logits, target):
    """The mean over the samples: as many as micro-batches."""
    return torch.sum(-target * F.log_softmax(logits, dim=-1), dim=-1).mean()


for window in windows:
    for images, labels in window:
        loss = soft_target_loss(model(images), F.one_hot(labels, 5).float())
        scaler.scale(loss / K).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
