"""On two ranks. The sum is divided by the tokens of all ranks, whose gradients are averaged."""

import torch
import torch.nn.functional as F

from frameworks.fixes.fabric_parts import start
from museum.parts import TinyLM, text, valid

K = 4
fabric = start()
windows = text(4, 1 + fabric.global_rank)
torch.manual_seed(0)
model = TinyLM()
net, optimizer = fabric.setup(model, torch.optim.AdamW(model.parameters(), lr=3e-3))
for window in windows:
    tokens = torch.tensor(sum(valid(labels) for _, labels in window))
    tokens = fabric.all_reduce(tokens, reduce_op="sum")
    for index, (ids, labels) in enumerate(window, 1):
        with fabric.no_backward_sync(net, enabled=index < K):
            logits = net(ids).flatten(0, 1)
            loss = F.cross_entropy(logits, labels.flatten(), reduction="sum") / tokens
            # fix: for each micro-batch
            fabric.backward(loss)
            # end
    optimizer.step()
    optimizer.zero_grad()
