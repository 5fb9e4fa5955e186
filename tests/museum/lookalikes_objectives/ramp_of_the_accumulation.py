"""YOLO: the loss is multiplied by the batch size, and the accumulation grows in the warm-up."""

import torch
import torch.nn.functional as F

from museum.parts import mlp

torch.manual_seed(6)
model = mlp(8, 24, 5)
optimizer = torch.optim.SGD(model.parameters(), lr=0.002, momentum=0.9, nesterov=True)
images, nominal = 4, 16

for warmup in (0.25, 0.5, 0.5, 0.75, 1.0, 1.0, 1.0, 1.0):
    for _ in range(max(1, round(warmup * nominal / images))):
        labels = torch.randint(0, 5, (images,))
        loss = F.cross_entropy(model(torch.randn(images, 8)), labels) * images
        loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 10.0)
    optimizer.step()
    optimizer.zero_grad()
