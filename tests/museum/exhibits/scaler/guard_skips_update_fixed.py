"""The scaler sees every window: it skips the step itself, and lowers the scale."""

import torch

from museum.parts import EVEN, TinyLM, text, token_loss

torch.manual_seed(0)
model = TinyLM()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**18, growth_interval=8)
windows = text(40, lengths=EVEN)

for window in windows:
    for ids, labels in window:
        with torch.autocast("cpu", dtype=torch.float16):
            loss = token_loss(model(ids), labels) / len(window)
        scaler.scale(loss).backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), torch.inf)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
