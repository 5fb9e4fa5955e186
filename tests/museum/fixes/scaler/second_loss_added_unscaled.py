"""A second loss is added to a scaled loss, and is not scaled."""

import torch

from museum.parts import EVEN, TinyLM, text, token_loss

evidence, objective = "gradient_of_all", "peaked"
torch.manual_seed(0)
model = TinyLM()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
windows = text(6, lengths=EVEN)

for window in windows:
    for ids, labels in window:
        loss = token_loss(model(ids), labels) / len(window)
        other = model(ids).logsumexp(-1).square().mean() / len(window)
        # fix
        (scaler.scale(loss) + other).backward()
        # end
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
