"""The loss is divided by the pairs of the window."""

import torch
import torch.nn.functional as F

from museum.parts import IGNORED, RAGGED, TinyLM, sentences

torch.manual_seed(51)
model = TinyLM()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
generator = torch.Generator().manual_seed(51)


def log_prob(ids, labels):
    """The log-probability of each answer."""
    log_p = model(ids).log_softmax(-1).gather(-1, labels.clamp(min=0).unsqueeze(-1)).squeeze(-1)
    return (log_p * (labels != IGNORED)).sum(-1)


def pairs(lengths):
    """A chosen and a rejected answer, with their log-probabilities in the reference."""
    chosen, rejected = sentences(lengths, generator), sentences(lengths[::-1], generator)
    with torch.no_grad():
        return (*chosen, *rejected, log_prob(*chosen) - log_prob(*rejected))


windows = [[pairs(rows) for rows in window] for window in RAGGED * 2]

for window in windows:
    count = sum(len(ids) for ids, *_ in window)
    for ids, labels, worse_ids, worse_labels, reference in window:
        margin = log_prob(ids, labels) - log_prob(worse_ids, worse_labels) - reference
        losses = -F.logsigmoid(0.5 * margin)
        loss = losses.sum() / count
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()
