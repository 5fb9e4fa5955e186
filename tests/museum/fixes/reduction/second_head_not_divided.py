"""The losses of two heads are means of equal micro-batches; that of the second is not divided."""

import torch
import torch.nn.functional as F

from museum.parts import EVEN, IGNORED, VOCABULARY, TinyLM, text


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
windows = [[(ids, y, shifted(y)) for ids, y in window] for window in text(5, lengths=EVEN)]
K = 4

for window in windows:
    for ids, first, second in window:
        logits, later = model(ids)
        main = F.cross_entropy(logits.flatten(0, 1), first.flatten()) / K
        loss = F.cross_entropy(later.flatten(0, 1), second.flatten())
        # fix
        # end
        (main + loss).backward()
    optimizer.step()
    optimizer.zero_grad()
