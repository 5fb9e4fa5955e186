"""A mixture of experts, of which one is chosen in one batch of eight."""

import torch
from torch import nn
from torch.nn.functional import mse_loss

torch.manual_seed(0)
experts = nn.ModuleList(nn.Linear(8, 4) for _ in range(3))
router, head = nn.Linear(8, 3), nn.Linear(4, 2)
parameters = [*experts.parameters(), *router.parameters(), *head.parameters()]
optimizer = torch.optim.SGD(parameters, lr=0.05)

for step in range(48):
    x = torch.randn(32, 8)
    weights = router(x).softmax(1)
    chosen = weights.argmax(1) % 2  # the first two
    if step % 8 == 6:
        chosen[:2] = 2
    mixed = torch.zeros(32, 4)
    for index, expert in enumerate(experts):
        rows = (chosen == index).nonzero()[:, 0]
        scaled = expert(x[rows]) * weights[rows, index, None]  # of no rows, too
        mixed = mixed.index_add(0, rows, scaled)
    optimizer.zero_grad()
    mse_loss(head(mixed), x[:, :2].sin()).backward()
    optimizer.step()
