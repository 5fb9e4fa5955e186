"""ORPO under a trainer that divides by K: the likelihood is a token mean of each micro-batch."""

import torch
import torch.nn.functional as F

from museum.parts import IGNORED, RAGGED, TinyLM, sentences, token_loss, valid

torch.manual_seed(17)
model = TinyLM()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
generator = torch.Generator().manual_seed(17)
windows = [
    [(*sentences(rows, generator), *sentences(rows[::-1], generator)) for rows in window]
    for window in RAGGED * 2
]


def mean_log_prob(logits, labels):
    """The mean log-probability of each answer."""
    log_p = logits.log_softmax(-1).gather(-1, labels.clamp(min=0).unsqueeze(-1)).squeeze(-1)
    mask = labels != IGNORED
    return (log_p * mask).sum(-1) / mask.sum(-1)


def odds_ratios(chosen, rejected):
    """-log sigmoid of the log odds ratio, of each pair."""
    log_odds = (chosen - rejected) - (torch.log1p(-chosen.exp()) - torch.log1p(-rejected.exp()))
    return -F.logsigmoid(log_odds)


for window in windows:
    tokens = sum(valid(labels) for _, labels, _, _ in window)
    for ids, labels, worse_ids, worse_labels in window:
        logits = model(ids)
        chosen = mean_log_prob(logits, labels)
        rejected = mean_log_prob(model(worse_ids), worse_labels)
        odds = odds_ratios(chosen, rejected).mean()
        loss = (token_loss(logits, labels) + 0.1 * odds) / len(window)
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()
