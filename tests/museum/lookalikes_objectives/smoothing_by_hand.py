"""Label smoothing by hand: a picked and an averaged log-probability, by the window's tokens."""

import torch

from museum.parts import IGNORED, TinyLM, text, valid

torch.manual_seed(24)
model = TinyLM()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

for window in text(6, seed=24):
    tokens = sum(valid(labels) for _, labels in window)
    for ids, labels in window:
        mask = labels != IGNORED
        log_p = model(ids)[mask].log_softmax(-1)
        nll = -log_p.gather(-1, labels[mask].unsqueeze(-1)).squeeze(-1)
        loss = (0.9 * nll - 0.1 * log_p.mean(-1)).sum() / tokens
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()
