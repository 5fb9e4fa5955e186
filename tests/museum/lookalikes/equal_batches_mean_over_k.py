"""nanoGPT: blocks of one size, loss / K, clip, step."""

import torch

from museum.parts import EVEN, TinyLM, text, token_loss

torch.manual_seed(28)
model = TinyLM()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)

for window in text(10, lengths=EVEN):
    for X, Y in window:
        loss = token_loss(model(X), Y) / len(window)
        loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    scheduler.step()
    optimizer.zero_grad(set_to_none=True)
