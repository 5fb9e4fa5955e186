"""A hand-written mean over a mask: a micro-batch without any label is 0 / 0."""

import torch

from museum.parts import EVEN, IGNORED, TinyLM, text

torch.manual_seed(0)
model = TinyLM()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
scaler = torch.amp.GradScaler("cpu")
windows = text(40, lengths=EVEN)

for window in windows:
    window[-1][1].fill_(IGNORED)  # the answer was cut off
    for ids, labels in window:
        with torch.autocast("cpu", dtype=torch.float16):
            chosen = labels.clamp(min=0).unsqueeze(-1)
            logp = model(ids).log_softmax(-1).gather(-1, chosen).squeeze(-1)
        mask = (labels != IGNORED).float()
        loss = -(logp * mask).sum() / mask.sum()
        scaler.scale(loss / len(window)).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
