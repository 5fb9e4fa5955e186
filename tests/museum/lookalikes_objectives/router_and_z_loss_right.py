"""A token loss, a z-loss of the router and its balance, each with its divisor."""

import torch
import torch.nn.functional as F
from torch import nn

from museum.parts import IGNORED, TinyLM, text, token_loss, valid

torch.manual_seed(6)
model = TinyLM()
router = nn.Linear(16, 4)
optimizer = torch.optim.AdamW([*model.parameters(), *router.parameters()], lr=3e-3)

for window in text(6, seed=6):
    tokens = sum(valid(labels) for _, labels in window)
    for ids, labels in window:
        hidden = model.features(ids)
        routed = router(hidden)
        probabilities = routed.softmax(-1)
        best, chosen = probabilities.topk(2, -1)
        logits = model.head(hidden + best.sum(-1, keepdim=True) * hidden)
        share = F.one_hot(chosen, 4).float().mean((0, 1))
        balance = 4 * (share * probabilities.mean((0, 1)).unsqueeze(0)).sum()
        z_loss = routed[labels != IGNORED].logsumexp(-1).square().sum()
        loss = (token_loss(logits, labels, "sum") + 0.001 * z_loss) / tokens
        (loss + 0.02 * balance / len(window)).backward()
    optimizer.step()
    optimizer.zero_grad()
