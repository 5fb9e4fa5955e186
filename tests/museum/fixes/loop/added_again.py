"""Backward is called on the sum of the window's losses so far."""

import torch

from museum.parts import EVEN, TinyLM, text, token_loss

torch.manual_seed(0)
model = TinyLM()
loss_fn = token_loss
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
windows = text(4, lengths=EVEN)
loader = [batch for window in windows for batch in window]
K = 4
losses, total = [], 0.0

# fix
for i, (x, y) in enumerate(loader):
    losses.append(loss_fn(model(x), y) / K)
    sum(losses).backward(retain_graph=True)
    if (i + 1) % K == 0:
        optimizer.step()
        optimizer.zero_grad()
        losses.clear()
# end
