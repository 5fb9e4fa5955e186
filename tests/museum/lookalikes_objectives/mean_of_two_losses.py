"""Half a cross entropy and half a dice loss, over three micro-batches of images of one size."""

import torch
from torch.nn.functional import cross_entropy

torch.manual_seed(48)
model = torch.nn.Conv2d(3, 2, 3, padding=1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
micro_batches = 3

for _ in range(8):
    for _ in range(micro_batches):
        images = torch.randn(4, 3, 8, 8)
        classes = (images[:, 0] > 0).long()
        logits = model(images)
        inside = logits.softmax(1)[:, 1]
        both = inside.sum((1, 2)) + classes.sum((1, 2))
        dice = 1 - (2 * (inside * classes).sum((1, 2)) + 1) / (both + 1)
        loss = (cross_entropy(logits, classes) + dice.mean()) / 2
        (loss / micro_batches).backward()
    optimizer.step()
    optimizer.zero_grad()
