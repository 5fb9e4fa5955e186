"""Two models, two optimizers, a scaler for each."""

import torch

from museum.parts import EVEN, TinyLM, text, token_loss

torch.manual_seed(0)
students = [TinyLM(), TinyLM(8)]
optimizers = [torch.optim.AdamW(student.parameters(), lr=3e-3) for student in students]
scalers = [torch.amp.GradScaler("cpu", init_scale=2.0**n) for n in (16, 10)]

for window in text(8, lengths=EVEN):
    for student, optimizer, scaler in zip(students, optimizers, scalers, strict=True):
        for ids, labels in window:
            with torch.autocast("cpu", dtype=torch.float16):
                loss = token_loss(student(ids), labels) / len(window)
            scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
