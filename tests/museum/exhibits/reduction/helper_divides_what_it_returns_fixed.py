"""The helper divides, and then calls backward."""

import torch
from torch import Tensor

from museum.parts import EVEN, TinyLM, text, token_loss

torch.manual_seed(13)
model = TinyLM()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
windows = text(5, seed=1, lengths=EVEN)


def compute_loss_and_backward(ids: Tensor, labels: Tensor, share: int) -> Tensor:
    loss = token_loss(model(ids), labels) / share
    loss.backward()
    return loss.detach()


history = []
for micro_batches in windows:
    optimizer.zero_grad()
    step_loss = 0.0
    for ids, labels in micro_batches:
        step_loss += compute_loss_and_backward(ids, labels, len(micro_batches)).item()
    optimizer.step()
    history.append(step_loss)
