"""torchtune's scale_grads: sums go backward, gradients are divided by the tokens of the window."""

import torch
from torch import nn

from museum.parts import TinyLM, text, token_loss, valid

torch.manual_seed(1)
model = TinyLM()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)


def scale_grads(module: nn.Module, scaler: float) -> None:
    """Multiply every gradient in place."""
    for p in module.parameters():
        if p.grad is not None:
            p.grad *= scaler


for window in text(6, seed=1):
    num_tokens = 0
    for ids, labels in window:
        num_tokens += valid(labels)
        loss = token_loss(model(ids), labels) * valid(labels)
        loss.backward()
    scale_grads(model, 1 / num_tokens)
    torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
