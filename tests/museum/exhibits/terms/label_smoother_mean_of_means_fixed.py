"""The smoothed loss is divided by the labels of the window."""

import torch

from museum.parts import IGNORED, TinyLM, text, valid

torch.manual_seed(35)
model = TinyLM()
optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
windows = text(5, seed=35)

for window in windows:
    tokens = sum(valid(labels) for _, labels in window)
    for ids, labels in window:
        log_p = -model(ids).log_softmax(-1)
        padding = labels.eq(IGNORED).unsqueeze(-1)
        nll = log_p.gather(-1, labels.clamp(min=0).unsqueeze(-1)).masked_fill_(padding, 0.0)
        smoothed = log_p.sum(-1, keepdim=True).masked_fill_(padding, 0.0)
        nll, smoothed = nll.sum() / tokens, smoothed.sum() / (tokens * 24)
        loss = 0.9 * nll + 0.1 * smoothed
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()
