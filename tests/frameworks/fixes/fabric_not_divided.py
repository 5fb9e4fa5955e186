"""The losses of the micro-batches are added up."""

import torch
import torch.nn.functional as F

from frameworks.fixes.fabric_parts import start
from museum.parts import EVEN, TinyLM, text

K = 4
fabric = start()
windows = text(4, 1 + fabric.global_rank, EVEN)
torch.manual_seed(0)
model = TinyLM()
net, optimizer = fabric.setup(model, torch.optim.AdamW(model.parameters(), lr=3e-3))
for window in windows:
    for index, (ids, labels) in enumerate(window, 1):
        with fabric.no_backward_sync(net, enabled=index < K):
            loss = F.cross_entropy(net(ids).flatten(0, 1), labels.flatten())
            # fix: for each micro-batch
            fabric.backward(loss)
            # end
    optimizer.step()
    optimizer.zero_grad()
