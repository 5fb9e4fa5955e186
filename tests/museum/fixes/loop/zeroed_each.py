"""Gradients are zeroed before each backward of a window."""

import torch

from museum.parts import EVEN, TinyLM, text, token_loss

torch.manual_seed(0)
model = TinyLM()
loss_fn = token_loss
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
windows = text(4, lengths=EVEN)
loader = [batch for window in windows for batch in window]
K = 4

# fix
for i, (x, y) in enumerate(loader):
    optimizer.zero_grad()
    (loss_fn(model(x), y) / K).backward()
    if (i + 1) % K == 0:
        optimizer.step()
# end
