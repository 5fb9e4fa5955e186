"""Windows of two micro-batches are divided by 4, as all others."""

import torch
import torch.nn.functional as F

from frameworks.fixes.fabric_parts import start
from museum.parts import EVEN, TinyLM, text

K = 4
fabric = start()
whole = text(6, 1 + fabric.global_rank, EVEN)
windows = [window[:2] if index % 2 else window for index, window in enumerate(whole)]
torch.manual_seed(0)
model = TinyLM()
net, optimizer = fabric.setup(model, torch.optim.AdamW(model.parameters(), lr=3e-3))
for window in windows:
    for index, (ids, labels) in enumerate(window, 1):
        with fabric.no_backward_sync(net, enabled=index < len(window)):
            loss = F.cross_entropy(net(ids).flatten(0, 1), labels.flatten())
            # fix: for each micro-batch
            fabric.backward(loss / K)
            # end
    optimizer.step()
    optimizer.zero_grad()
