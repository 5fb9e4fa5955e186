"""FSDP2 with gradient accumulation: gradients are reduced on the last micro-batch of each window.

gradledger check -- torchrun --standalone --nproc_per_node=2 examples/fsdp2.py
"""

import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

STEPS, MICRO_BATCHES, VOCABULARY = 10, 4, 32

cuda = torch.cuda.is_available()
if cuda:
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
device = "cuda" if cuda else "cpu"
mesh = init_device_mesh(device, (int(os.environ["WORLD_SIZE"]),))
rank, ranks = dist.get_rank(), dist.get_world_size()

torch.manual_seed(0)
model = nn.Sequential(nn.Embedding(VOCABULARY, 16), nn.Tanh(), nn.Linear(16, VOCABULARY))
model = model.to(device)
for part in (model[0], model[2], model):
    fully_shard(part, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
torch.manual_seed(1 + rank)

for _ in range(STEPS):
    lengths = torch.randint(4, 60, (MICRO_BATCHES,)).tolist()
    window = [torch.randint(VOCABULARY, (3, length), device=device) for length in lengths]
    tokens = torch.tensor(sum(words[:, 1:].numel() for words in window), device=device)
    dist.all_reduce(tokens)
    for i, words in enumerate(window, start=1):
        model.set_requires_gradient_sync(i == len(window))
        logits = model(words[:, :-1].flatten())
        loss = F.cross_entropy(logits, words[:, 1:].flatten(), reduction="sum")
        (loss * ranks / tokens).backward()  # FSDP averages over ranks: take that back
    optimizer.step()
    optimizer.zero_grad()
if rank == 0:
    print(f"trained {STEPS} steps on {ranks} ranks")
dist.destroy_process_group()
