"""An actor and a critic, each in DDP: both forwards come first, then both backwards."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

from museum.parts import mlp

dist.init_process_group("gloo")
torch.manual_seed(0)
actor = DistributedDataParallel(mlp(8, 16, 3))
critic = DistributedDataParallel(mlp(8, 16, 1))
for_actor = torch.optim.Adam(actor.parameters(), lr=2e-3)
for_critic = torch.optim.Adam(critic.parameters(), lr=4e-3)
torch.manual_seed(5 + dist.get_rank())

for _ in range(12):
    x = torch.randn(16, 8)
    logits, value = actor(x), critic(x)
    for_actor.zero_grad()
    for_critic.zero_grad()
    F.cross_entropy(logits, x[:, :3].argmax(1)).backward()
    F.mse_loss(value.squeeze(1), x.sum(1).sin()).backward()
    for_actor.step()
    for_critic.step()
dist.destroy_process_group()
