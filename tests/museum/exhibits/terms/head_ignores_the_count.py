"""forward() takes any keyword, so the trainer believes that it normalises by num_items_in_batch."""

import torch
import torch.nn.functional as F
from torch import nn

from museum.parts import mlp


class Classifier(nn.Module):
    """A head for sequence classification."""

    def __init__(self):
        super().__init__()
        self.layers = mlp(8, 16, 5)

    def forward(self, inputs, labels=None, **kwargs):
        """Logits; and the loss, if there are labels."""
        logits = self.layers(inputs)
        if labels is None:
            return logits
        loss = F.cross_entropy(logits, labels)
        return loss, logits


torch.manual_seed(65)
model = Classifier()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
windows = []

for _ in range(6):
    window = [(torch.randn(8, 8), torch.randint(0, 5, (8,))) for _ in range(4)]
    num_items_in_batch = sum(labels.numel() for _, labels in window)
    for inputs, labels in window:
        loss, _ = model(inputs, labels, num_items_in_batch=num_items_in_batch)
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    windows.append(window)
