"""Accumulation as first written: K losses are added up, and nobody divides."""

import torch

from museum.parts import EVEN, TinyLM, text, token_loss

torch.manual_seed(12)
model = TinyLM()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95))
gradient_accumulation_steps = 4
windows = text(6, lengths=EVEN)
max_norm = 1.0

for iter_num in range(6):
    for micro_step in range(gradient_accumulation_steps):
        X, Y = windows[iter_num][micro_step]
        loss = token_loss(model(X), Y)
        loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
windows = list(windows)
