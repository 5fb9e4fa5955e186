"""DPO on batches of one length each: they differ in their number of pairs."""

import torch
import torch.nn.functional as F

from museum.parts import IGNORED, TinyLM, sentences

torch.manual_seed(52)
model = TinyLM()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
generator = torch.Generator().manual_seed(52)


def log_prob(ids, labels):
    """The log-probability of each answer."""
    log_p = model(ids).log_softmax(-1).gather(-1, labels.clamp(min=0).unsqueeze(-1)).squeeze(-1)
    return (log_p * (labels != IGNORED)).sum(-1)


SIZES = [[(5, 3), (2, 2, 7, 9), (4,), (6, 2, 3)], [(3,), (8, 4), (9, 5, 2), (4, 4, 2, 7)]]


def pairs(lengths):
    """A chosen and a rejected answer, with their log-probabilities in the reference."""
    chosen, rejected = sentences(lengths, generator), sentences(lengths[::-1], generator)
    with torch.no_grad():
        return (*chosen, *rejected, log_prob(*chosen) - log_prob(*rejected))


windows = [[pairs(rows) for rows in window] for window in SIZES * 2]

for window in windows:
    count = sum(len(ids) for ids, *_ in window)
    for ids, labels, worse_ids, worse_labels, reference in window:
        margin = log_prob(ids, labels) - log_prob(worse_ids, worse_labels) - reference
        losses = -F.logsigmoid(0.5 * margin)
        loss = losses.mean() / len(window)
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()
