"""The loop unscales once; one micro-batch in each window."""

import torch

from museum.parts import TinyLM, text, token_loss, valid

torch.manual_seed(0)
model = TinyLM()
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
windows = text(8, lengths=(((6, 6),),))

for ((ids, labels),) in windows:
    with torch.autocast("cpu", dtype=torch.float16):
        loss = token_loss(model(ids), labels, reduction="sum") / valid(labels)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 100.0)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
