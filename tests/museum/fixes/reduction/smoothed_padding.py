"""A label smoothing by hand that adds up the log-probabilities of padding, too."""

import torch
from torch.nn.functional import pad

from museum.parts import IGNORED, TinyLM, text, valid

torch.manual_seed(0)
model = TinyLM()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
windows = [
    [(pad(ids, (0, 12)), pad(labels, (0, 12), value=IGNORED)) for ids, labels in window]
    for window in text(4)
]
objective, ignore_index = "smoothed", IGNORED

for window in windows:
    tokens = sum(valid(labels) for _, labels in window)
    for ids, target in window:
        log_p = model(ids).log_softmax(-1)
        nll_loss = -log_p.gather(-1, target.clamp(min=0).unsqueeze(-1))
        nll_loss = nll_loss.masked_fill(target.unsqueeze(-1) == ignore_index, 0.0)
        smooth_loss = -log_p.sum(-1, keepdim=True)
        # fix: before the sum over the positions, as for the negative log-likelihood
        # end
        ((0.9 * nll_loss.sum() + 0.1 / 24 * smooth_loss.sum()) / tokens).backward()
    optimizer.step()
    optimizer.zero_grad()
