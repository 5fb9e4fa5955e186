"""The loss of the first head is divided by the tokens of the window, that of the second by K."""

import torch
import torch.nn.functional as F

from museum.parts import IGNORED, VOCABULARY, Batch, TinyLM, text


class TwoHeads(TinyLM):
    """The next token, and a tenth of the one after it."""

    def __init__(self):
        super().__init__()
        self.second = torch.nn.Linear(16, VOCABULARY)

    def forward(self, ids):
        """The logits of both."""
        features = self.features(ids)
        return self.head(features), self.second(features)


def shifted(labels):
    """The labels after the next ones."""
    return F.pad(labels[:, 1:], (0, 1), value=IGNORED)


objective = "two_losses"
torch.manual_seed(0)
model = TwoHeads()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
windows = [[(ids, y, shifted(y)) for ids, y in window] for window in text(5)]

for whole in windows:
    total = sum((first != IGNORED).sum() for _, first, _ in whole)
    window: list[Batch] = [(ids, second) for ids, _, second in whole]
    # fix: before the window
    # end
    for ids, first, second in whole:
        logits, later = model(ids)
        main = F.cross_entropy(logits.flatten(0, 1), first.flatten(), reduction="sum") / total
        logits, labels = later.flatten(0, 1), second.flatten()
        # fix: where this loss is computed, before it is added to the others
        loss = F.cross_entropy(logits, labels) / len(window)
        # end
        (main + loss).backward()
    optimizer.step()
    optimizer.zero_grad()
