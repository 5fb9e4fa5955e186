"""Evolution strategies: the gradient is estimated from losses and assigned by hand."""

import torch
import torch.nn.functional as F

from museum.parts import mlp

torch.manual_seed(22)
model = mlp(8, 6, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
x = torch.randn(32, 8)
y = torch.sin(x[:, :2])
center = torch.nn.utils.parameters_to_vector(model.parameters()).detach()

for _ in range(8):
    with torch.no_grad():
        center = torch.nn.utils.parameters_to_vector(model.parameters())
        estimate = torch.zeros_like(center)
        for noise in torch.randn(8, len(center)):
            losses = []
            for sign in (1, -1):
                torch.nn.utils.vector_to_parameters(center + 0.1 * sign * noise, model.parameters())
                losses.append(F.mse_loss(model(x), y))
            estimate += (losses[0] - losses[1]) / 0.2 * noise / 8
        torch.nn.utils.vector_to_parameters(center, model.parameters())
        for p, part in zip(
            model.parameters(),
            estimate.split([p.numel() for p in model.parameters()]),
            strict=True,
        ):
            p.grad = part.view_as(p).clone()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
