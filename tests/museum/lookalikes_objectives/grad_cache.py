"""GradCache: a contrastive loss over a large batch; its gradients are passed on in chunks."""

import torch
import torch.nn.functional as F

from museum.parts import mlp

torch.manual_seed(4)
model = mlp(8, 16, 6)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

for _ in range(6):
    views = torch.randn(2, 24, 8)
    with torch.no_grad():
        cached = torch.stack([model(view) for view in views])
    cached.requires_grad_()
    first, second = F.normalize(cached, dim=-1)
    F.cross_entropy(first @ second.T / 0.1, torch.arange(24)).backward()
    assert cached.grad is not None
    for view, gradients in zip(views, cached.grad, strict=True):
        for chunk, gradient in zip(view.split(6), gradients.split(6), strict=True):
            (model(chunk) * gradient).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
