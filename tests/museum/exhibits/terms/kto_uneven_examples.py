"""KTO: good and bad examples, averaged over those of each micro-batch."""

import torch

from museum.parts import IGNORED, TinyLM, sentences

torch.manual_seed(53)
model = TinyLM()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
generator = torch.Generator().manual_seed(53)

SIZES = [[(5, 3), (2, 2, 7, 9), (4,), (6, 2, 3)], [(3,), (8, 4), (9, 5, 2), (4, 4, 2, 7)]]


def log_prob(ids, labels):
    """The log-probability of each answer."""
    log_p = model(ids).log_softmax(-1).gather(-1, labels.clamp(min=0).unsqueeze(-1)).squeeze(-1)
    return (log_p * (labels != IGNORED)).sum(-1)


def examples(lengths):
    """Answers that are good or bad, with their log-probabilities in the reference."""
    answers = sentences(lengths, generator)
    good = torch.rand(len(lengths), generator=generator) < 0.5
    with torch.no_grad():
        return (*answers, log_prob(*answers), good)


windows = [[examples(rows) for rows in window] for window in SIZES * 3]

for window in windows:
    count = sum(len(ids) for ids, *_ in window)
    for ids, labels, reference, good in window:
        reward = 0.5 * (log_prob(ids, labels) - reference)
        desired, undesired = 1 - reward[good].sigmoid(), 1 - (-reward[~good]).sigmoid()
        losses = torch.cat([desired, 1.5 * undesired])
        loss = losses.mean() / len(window)
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()
