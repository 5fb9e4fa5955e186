"""CPO: preference and likelihood are normalised, and the trainer divides their sum by K."""

import torch
import torch.nn.functional as F

from museum.parts import IGNORED, RAGGED, TinyLM, sentences, token_loss, valid

torch.manual_seed(18)
model = TinyLM()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
generator = torch.Generator().manual_seed(18)
windows = [
    [(*sentences(rows, generator), *sentences(rows[::-1], generator)) for rows in window]
    for window in RAGGED * 2
]


def mean_log_prob(logits, labels):
    """The mean log-probability of each answer."""
    log_p = logits.log_softmax(-1).gather(-1, labels.clamp(min=0).unsqueeze(-1)).squeeze(-1)
    mask = labels != IGNORED
    return (log_p * mask).sum(-1) / mask.sum(-1)


for window in windows:
    tokens = sum(valid(labels) for _, labels, _, _ in window)
    for ids, labels, worse_ids, worse_labels in window:
        logits = model(ids)
        margin = mean_log_prob(logits, labels) - mean_log_prob(model(worse_ids), worse_labels)
        preference = -F.logsigmoid(2.0 * margin).mean() / len(window)
        likelihood = token_loss(logits, labels, "sum") / tokens
        loss = (preference + likelihood) / len(window)
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()
