"""DDP with gradient accumulation: one sync per window, one token count over all ranks.

gradledger check -- torchrun --standalone --nproc_per_node=2 examples/ddp.py
"""

import contextlib
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

STEPS, MICRO_BATCHES, VOCABULARY = 10, 4, 32

cuda = torch.cuda.is_available()
dist.init_process_group("nccl" if cuda else "gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()
device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")

torch.manual_seed(0)  # the same model on each rank ...
model = nn.Sequential(nn.Embedding(VOCABULARY, 16), nn.Tanh(), nn.Linear(16, VOCABULARY))
model = nn.parallel.DistributedDataParallel(model.to(device))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
torch.manual_seed(1 + rank)  # ... and different data

for _ in range(STEPS):
    lengths = torch.randint(4, 60, (MICRO_BATCHES,)).tolist()
    window = [torch.randint(VOCABULARY, (3, length), device=device) for length in lengths]
    tokens = torch.tensor(sum(words[:, 1:].numel() for words in window), device=device)
    dist.all_reduce(tokens)
    for i, words in enumerate(window, start=1):
        # DDP decides in forward whether the next backward syncs: both belong inside.
        with model.no_sync() if i < len(window) else contextlib.nullcontext():
            logits = model(words[:, :-1]).flatten(0, 1)
            loss = F.cross_entropy(logits, words[:, 1:].flatten(), reduction="sum")
            (loss * ranks / tokens).backward()  # DDP averages over ranks: take that back
    optimizer.step()
    optimizer.zero_grad()
if rank == 0:
    print(f"trained {STEPS} steps on {ranks} ranks")
dist.destroy_process_group()
