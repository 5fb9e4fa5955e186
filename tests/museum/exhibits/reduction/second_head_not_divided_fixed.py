"""Multi-token prediction: both losses are normalised over the window."""

import torch
from torch import Tensor, nn

from museum.parts import EVEN, IGNORED, VOCABULARY, TinyLM, text, token_loss, valid


class TwoHeads(nn.Module):
    """Predicts the next token and the one after it."""

    def __init__(self) -> None:
        super().__init__()
        self.body = TinyLM()
        self.later = nn.Linear(16, VOCABULARY)

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.body.features(ids)
        return self.body.head(hidden), self.later(hidden)


def shifted(labels: Tensor) -> Tensor:
    """The labels of the second head."""
    later = torch.full_like(labels, IGNORED)
    later[:, :-1] = labels[:, 1:]
    return later


torch.manual_seed(15)
model = TwoHeads()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
windows = [[(x, y, shifted(y)) for x, y in window] for window in text(5, lengths=EVEN)]

for window in windows:
    total = sum(valid(labels) for _, labels, _ in window)
    for ids, labels, later in window:
        main, mtp = model(ids)
        loss = token_loss(main, labels, "sum") / total
        loss = loss + 0.1 * token_loss(mtp, later) / len(window)
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()
