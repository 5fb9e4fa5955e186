"""A penalty on activations is added undivided; the number of micro-batches grows."""

import torch

from museum.parts import EVEN, TinyLM, text, token_loss


class WithFeatures(TinyLM):
    """Returns its hidden states, too."""

    def forward(self, ids):
        """Logits and hidden states."""
        hidden = self.features(ids)
        return self.head(hidden), hidden


torch.manual_seed(32)
model = WithFeatures()
optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
windows = text(4, 32, [EVEN[0][:2]]) + text(4, 33, EVEN)

for window in windows:
    for ids, labels in window:
        logits, hidden = model(ids)
        loss = token_loss(logits, labels) / len(window)
        loss = loss + 0.5 * hidden.square().mean()
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()
