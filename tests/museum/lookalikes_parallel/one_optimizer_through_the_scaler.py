"""fp16 encoder under a scaler, fp32 head with its own plain loss and step."""

import torch

from museum.parts import EVEN, TinyLM, text, token_loss

torch.manual_seed(0)
model, probe = TinyLM(), torch.nn.Linear(16, 24)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
for_probe = torch.optim.AdamW(probe.parameters(), lr=3e-3)
scaler = torch.amp.GradScaler("cpu")

for window in text(8, lengths=EVEN):
    for ids, labels in window:
        with torch.autocast("cpu", dtype=torch.float16):
            loss = token_loss(model(ids), labels) / len(window)
        scaler.scale(loss).backward()
        with torch.no_grad():
            features = model.features(ids)
        (token_loss(probe(features), labels) / len(window)).backward()
    scaler.step(optimizer)
    scaler.update()
    for_probe.step()
    optimizer.zero_grad()
    for_probe.zero_grad()
