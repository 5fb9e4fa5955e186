"""A bf16 model with fp32 master weights that the loop keeps, and a static loss scale."""

import torch

from museum.parts import TinyLM, text, token_loss, valid

torch.manual_seed(0)
SCALE = 256.0
model = TinyLM().to(torch.bfloat16)
parameters = list(model.parameters())
masters = [p.detach().float().clone().requires_grad_() for p in parameters]
optimizer = torch.optim.AdamW(masters, lr=3e-3)

for window in text(8):
    total = sum(valid(labels) for _, labels in window)
    for ids, labels in window:
        loss = token_loss(model(ids).float(), labels, "sum") / total
        (loss * SCALE).backward()
    for master, parameter in zip(masters, parameters, strict=True):
        master.grad = parameter.grad.float() / SCALE
        parameter.grad = None
    optimizer.step()
    with torch.no_grad():
        for master, parameter in zip(masters, parameters, strict=True):
            parameter.copy_(master)
