"""Since transformers 4.46: the window is fetched first, and its labels are counted."""

import torch

from museum.parts import TinyLM, text, token_loss, valid

torch.manual_seed(0)
model = TinyLM()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
windows = text(6)

for window in windows:
    num_items_in_batch = sum(valid(labels) for _, labels in window)
    for ids, labels in window:
        loss = token_loss(model(ids), labels, reduction="sum")
        (loss / num_items_in_batch).backward()
    optimizer.step()
    optimizer.zero_grad()
