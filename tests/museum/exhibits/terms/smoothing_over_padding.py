"""The smoothed loss of fairseq without its pad mask: padding is pulled to equal probabilities."""

import torch
from torch.nn.functional import pad

from museum.parts import IGNORED, TinyLM, text, valid

torch.manual_seed(44)
model = TinyLM()
optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
windows = [
    [(pad(ids, (0, 12)), pad(labels, (0, 12), value=IGNORED)) for ids, labels in window]
    for window in text(5, seed=44)
]

for window in windows:
    tokens = sum(valid(labels) for _, labels in window)
    for ids, labels in window:
        log_p = model(ids).log_softmax(-1)
        padding = labels.eq(IGNORED).unsqueeze(-1)
        nll = -log_p.gather(-1, labels.clamp(min=0).unsqueeze(-1)).masked_fill(padding, 0.0)
        smoothed = -log_p.sum(-1, keepdim=True)
        loss = (0.9 * nll.sum() + 0.1 / 24 * smoothed.sum()) / tokens
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()
