"""The same chunks, each divided by the tokens of the window."""

import torch

from museum.parts import IGNORED, TinyLM, text, token_loss

torch.manual_seed(0)
model = TinyLM()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
windows = text(6)


def chunked_backward(hidden, labels, divisor):
    """The head and the loss for two chunks, so that not all logits are in memory."""
    gradients = []
    for chunk, targets in zip(hidden.chunk(2, 1), labels.chunk(2, 1), strict=True):
        leaf = chunk.detach().requires_grad_()
        loss = token_loss(model.head(leaf), targets, reduction="sum")
        (loss / divisor).backward()
        gradients.append(leaf.grad)
    hidden.backward(torch.cat(gradients, 1))


for window in windows:
    count = sum((labels != IGNORED).sum() for _, labels in window)
    for ids, labels in window:
        chunked_backward(model.features(ids), labels, count)
    optimizer.step()
    optimizer.zero_grad()
