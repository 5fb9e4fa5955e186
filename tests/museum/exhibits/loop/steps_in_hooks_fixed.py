"""Per-layer optimizers, stepped by hooks in the last micro-batch only."""

import torch
from torch import nn

from museum.parts import EVEN, TinyLM, text, token_loss

torch.manual_seed(11)
model = TinyLM()
optimizer_of = {p: torch.optim.Adam([p], lr=1e-3) for p in model.parameters()}
windows = text(4, lengths=EVEN)
boundary = False


def optimizer_hook(parameter: nn.Parameter) -> None:
    if not boundary:
        return
    optimizer_of[parameter].step()
    optimizer_of[parameter].zero_grad()


for each in model.parameters():
    each.register_post_accumulate_grad_hook(optimizer_hook)

for window in windows:
    for index, (ids, labels) in enumerate(window):
        boundary = index + 1 == len(window)
        (token_loss(model(ids), labels) / len(window)).backward()
