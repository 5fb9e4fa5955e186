"""One update, after all steps."""

import torch

from museum.parts import EVEN, TinyLM, text, token_loss

torch.manual_seed(0)
model = TinyLM()
optimizers = [
    torch.optim.AdamW([*model.embed.parameters(), *model.mix.parameters()], lr=3e-3),
    torch.optim.AdamW(model.head.parameters(), lr=3e-3),
]
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8, growth_interval=3)
windows = text(8, lengths=EVEN)

for window in windows:
    for ids, labels in window:
        with torch.autocast("cpu", dtype=torch.float16):
            loss = token_loss(model(ids), labels) / len(window)
        scaler.scale(loss).backward()
    for each in optimizers:
        scaler.step(each)
        each.zero_grad()
    scaler.update()
