"""TRADES: four backwards for the gradient of the inputs, then the loss that is stepped on."""

import torch
import torch.nn.functional as F
from torch import Tensor

from museum.parts import mlp

torch.manual_seed(0)
model = mlp(8, 32, 5)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def attacked(x: Tensor, natural: Tensor) -> Tensor:
    delta = torch.zeros_like(x).uniform_(-0.001, 0.001)
    for _ in range(4):
        delta.requires_grad_(True)
        F.kl_div(model(x + delta).log_softmax(1), natural, reduction="sum").backward()
        assert delta.grad is not None
        delta = (delta + 0.1 * delta.grad.sign()).clamp(-0.3, 0.3).detach()
    return x + delta


for _ in range(20):
    x = torch.randn(16, 8)
    y = x[:, :5].argmax(1)
    with torch.no_grad():
        natural = model(x).softmax(1)
    hostile = attacked(x, natural)
    optimizer.zero_grad()
    logits = model(x)
    robust = F.kl_div(model(hostile).log_softmax(1), logits.softmax(1), reduction="batchmean")
    (F.cross_entropy(logits, y) + 6.0 * robust).backward()
    optimizer.step()
