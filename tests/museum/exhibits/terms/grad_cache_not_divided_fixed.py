"""GradCache inside an accumulation: the cached gradients of four batches add up to their mean."""

import torch
import torch.nn.functional as F

from museum.parts import mlp

torch.manual_seed(4)
model = mlp(8, 16, 6)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
windows = [[torch.randn(2, 24, 8) for _ in range(4)] for _ in range(6)]

for window in windows:
    for views in window:
        with torch.no_grad():
            cached = torch.stack([model(view) for view in views])
        cached.requires_grad_()
        first, second = F.normalize(cached, dim=-1)
        loss = F.cross_entropy(first @ second.T / 0.1, torch.arange(24))
        (loss / len(window)).backward()
        assert cached.grad is not None
        for view, gradients in zip(views, cached.grad, strict=True):
            for chunk, gradient in zip(view.split(6), gradients.split(6), strict=True):
                (model(chunk) * gradient).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
