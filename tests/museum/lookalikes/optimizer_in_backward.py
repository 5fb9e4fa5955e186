"""The optimizer fused into backward: each parameter steps as soon as its gradient is there."""

import torch
from torch import nn

from museum.parts import EVEN, TinyLM, text, token_loss

torch.manual_seed(19)
model = TinyLM()
optimizers = {p: torch.optim.AdamW([p], lr=1e-3, foreach=False) for p in model.parameters()}


def step_now(parameter: nn.Parameter) -> None:
    """Runs when the gradient is complete."""
    optimizers[parameter].step()
    optimizers[parameter].zero_grad()


for each in model.parameters():
    each.register_post_accumulate_grad_hook(step_now)

for ids, labels in [batch for window in text(2, lengths=EVEN) for batch in window]:
    token_loss(model(ids), labels).backward()
