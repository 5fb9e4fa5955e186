"""A loss of masked frames is averaged by micro-batch, beside a token loss over the window."""

import torch
from torch import nn

from museum.parts import TinyLM, text, token_loss, valid


class Speech(nn.Module):
    """Predicts the next token and the pitch of this one."""

    def __init__(self):
        super().__init__()
        self.tokens = TinyLM()
        self.pitch = nn.Linear(16, 1)

    def forward(self, ids):
        hidden = self.tokens.features(ids)
        return self.tokens.head(hidden), self.pitch(hidden).squeeze(-1)


torch.manual_seed(14)
model = Speech()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
windows = text(5, seed=14)

for window in windows:
    tokens = sum(valid(labels) for _, labels in window)
    for ids, labels in window:
        logits, pitch = model(ids)
        voiced = (ids % 2 == 0).float()
        frames = ((pitch - ids / 10).square() * voiced).sum() / voiced.sum()
        loss = token_loss(logits, labels, "sum") / tokens
        loss = loss + 0.2 * frames / len(window)
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()
