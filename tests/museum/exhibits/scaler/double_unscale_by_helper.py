"""prepare_grads() unscales and clips; step() unscales again."""

import torch

from museum.parts import EVEN, TinyLM, text, token_loss

torch.manual_seed(0)
max_norm = 0.1
model = TinyLM()
optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
scaler = torch.amp.GradScaler("cpu")
windows = text(8, lengths=EVEN)


def prepare_grads(model, inverse):
    """Unscale, then clip."""
    gradients = [p.grad for p in model.parameters()]
    torch._foreach_mul_(gradients, inverse)
    torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)


for window in windows:
    for ids, labels in window:
        with torch.autocast("cpu", dtype=torch.float16):
            loss = token_loss(model(ids), labels) / len(window)
        scaler.scale(loss).backward()
    prepare_grads(model, 1.0 / scaler.get_scale())
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
