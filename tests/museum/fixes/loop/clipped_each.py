"""The partial sum of gradients is clipped after every micro-batch."""

import torch

from museum.parts import EVEN, TinyLM, text, token_loss

torch.manual_seed(0)
model = TinyLM()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
windows = text(4, lengths=EVEN)
K, max_norm = 4, 0.1

for i, (ids, labels) in enumerate(batch for window in windows for batch in window):
    (token_loss(model(ids), labels) / K).backward()
    # fix
    torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    if (i + 1) % K == 0:
        optimizer.step()
        optimizer.zero_grad()
    # end
