"""bf16 autocast needs no scaler."""

import torch

from museum.parts import EVEN, TinyLM, text, token_loss

torch.manual_seed(0)
model = TinyLM()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

for window in text(8, lengths=EVEN):
    for ids, labels in window:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = token_loss(model(ids), labels) / len(window)
        loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
