"""Adversarial training (FGM): a second backward of each batch, on perturbed embeddings."""

import torch

from museum.parts import EVEN, TinyLM, text, token_loss

torch.manual_seed(0)
model = TinyLM()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
windows = text(12, lengths=EVEN)
embedding = next(iter(model.parameters()))

for step, window in enumerate(windows):
    for ids, labels in window:
        (token_loss(model(ids), labels) / len(window)).backward()
        if step < 4:
            continue
        backup = embedding.data.clone()
        embedding.data.add_(0.1 * embedding.grad / embedding.grad.norm())
        (token_loss(model(ids), labels) / len(window)).backward()
        embedding.data = backup
    optimizer.step()
    optimizer.zero_grad()
