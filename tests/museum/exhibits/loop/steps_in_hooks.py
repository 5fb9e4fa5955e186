"""Per-layer optimizers, stepped by hooks: K micro-batches make K updates."""

import torch
from torch import nn

from museum.parts import EVEN, TinyLM, text, token_loss

torch.manual_seed(11)
model = TinyLM()
optimizer_of = {p: torch.optim.Adam([p], lr=1e-3) for p in model.parameters()}
windows = text(4, lengths=EVEN)


def optimizer_hook(parameter: nn.Parameter) -> None:
    optimizer_of[parameter].step()
    optimizer_of[parameter].zero_grad()


for each in model.parameters():
    each.register_post_accumulate_grad_hook(optimizer_hook)

for window in windows:
    for ids, labels in window:
        (token_loss(model(ids), labels) / len(window)).backward()
