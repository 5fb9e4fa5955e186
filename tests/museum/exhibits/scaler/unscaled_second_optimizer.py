"""The head and the body have a loss and an optimizer each, and one scaler; one loss is scaled."""

import torch

from museum.parts import EVEN, TinyLM, text, token_loss

torch.manual_seed(0)
model = TinyLM()
body = [*model.embed.parameters(), *model.mix.parameters()]
for_body = torch.optim.AdamW(body, lr=3e-3)
for_head = torch.optim.AdamW(model.head.parameters(), lr=3e-3)
scaler = torch.amp.GradScaler("cpu")
windows = text(8, lengths=EVEN)

for window in windows:
    for ids, labels in window:
        with torch.autocast("cpu", dtype=torch.float16):
            features = model.features(ids)
            of_head = token_loss(model.head(features.detach()), labels) / len(window)
            of_body = token_loss(model.head(features), labels) / len(window)
        scaler.scale(of_head).backward()
        of_body.backward(inputs=body)
    scaler.step(for_head)
    scaler.step(for_body)
    scaler.update()
    for_head.zero_grad()
    for_body.zero_grad()
