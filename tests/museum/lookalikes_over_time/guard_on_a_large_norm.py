"""A guard with a limit of the norm leaves out the steps of a few corrupt windows."""

import torch

from museum.parts import EVEN, TinyLM, text, token_loss

K, LIMIT = 4, 1.5
torch.manual_seed(0)
model = TinyLM()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

for step, window in enumerate(text(40, lengths=EVEN)):
    for ids, labels in window:
        loss = token_loss(model(ids), labels)
        (loss * (30 if step in (12, 25, 33) else 1) / K).backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), LIMIT)
    if norm < 4 * LIMIT:
        optimizer.step()
    optimizer.zero_grad()
