"""The means of micro-batches with different numbers of tokens are averaged."""

import torch
import torch.nn.functional as F

from frameworks.fixes.fabric_parts import start
from museum.parts import TinyLM, text

K = 4
fabric = start()
windows = text(4, 1 + fabric.global_rank)
torch.manual_seed(0)
model = TinyLM()
net, optimizer = fabric.setup(model, torch.optim.AdamW(model.parameters(), lr=3e-3))
for window in windows:
    # fix: before the window
    # end
    for index, (ids, targets) in enumerate(window, 1):
        with fabric.no_backward_sync(net, enabled=index < K):
            logits, labels = net(ids).flatten(0, 1), targets.flatten()
            # fix: for each micro-batch
            fabric.backward(F.cross_entropy(logits, labels) / K)
            # end
    optimizer.step()
    optimizer.zero_grad()
