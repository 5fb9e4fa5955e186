"""clip_grad_norm_ beside the step."""

import torch

from museum.parts import EVEN, TinyLM, text, token_loss

torch.manual_seed(8)
model = TinyLM()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
windows = text(5, lengths=EVEN)
max_norm = 0.1

for window in windows:
    for ids, labels in window:
        loss = token_loss(model(ids), labels) / len(window)
        loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    optimizer.step()
    model.zero_grad()
