"""A smoothing term beside the loss: a mean over all positions, which are padded."""

import torch
import torch.nn.functional as F

from museum.parts import IGNORED, TinyLM, text, valid

torch.manual_seed(47)
model = TinyLM()
optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
LENGTHS = tuple((long,) * 3 + (short,) * 3 for long, short in ((40, 3), (25, 24), (60, 5)))
windows = text(5, seed=47, lengths=(LENGTHS,))

for window in windows:
    tokens = sum(valid(labels) for _, labels in window)
    for ids, labels in window:
        log_p, labels = model(ids).log_softmax(-1).flatten(0, 1), labels.flatten()
        nll = F.nll_loss(log_p, labels, ignore_index=IGNORED, reduction="sum") / tokens
        smoothed = -log_p.mean(-1)
        loss = nll + 0.1 * smoothed.mean() / len(window)
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()
