"""The divergence from the teacher is summed over the accumulation."""

import torch
import torch.nn.functional as F

from museum.parts import EVEN, TinyLM, text, valid

torch.manual_seed(32)
teacher, model = TinyLM(), TinyLM()
optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
with torch.no_grad():
    windows = [
        [(ids, labels, teacher(ids).mul(4).softmax(-1)) for ids, labels in window]
        for window in text(5, 32, EVEN)
    ]

for window in windows:
    tokens = sum(valid(labels) for _, labels, _ in window)
    for ids, _, soft in window:
        log_p = model(ids).log_softmax(-1)
        loss = F.kl_div(log_p.flatten(0, 1), soft.flatten(0, 1), reduction="batchmean")
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()
