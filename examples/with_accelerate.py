"""Accelerate, with one token count per window over all processes.

gradledger check -- python examples/with_accelerate.py
gradledger check -- torchrun --standalone --nproc_per_node=2 examples/with_accelerate.py
"""

import random

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import GradientAccumulationPlugin
from torch import nn
from torch.utils.data import DataLoader

STEPS, MICRO_BATCHES, VOCABULARY, PAD = 10, 4, 32, -100


def collate(sentences):
    return nn.utils.rnn.pad_sequence(sentences, batch_first=True, padding_value=PAD)


# Windows are fetched ahead, so the loader may end before the last window is trained. Without
# sync_with_dataloader=False, Accelerate would then step after every micro-batch.
plugin = GradientAccumulationPlugin(num_steps=MICRO_BATCHES, sync_with_dataloader=False)
# Without GPUs, Accelerate creates a process group only with cpu=True.
cpu = not torch.cuda.is_available()
accelerator = Accelerator(cpu=cpu, gradient_accumulation_plugin=plugin)
random.seed(0)
torch.manual_seed(0)
sentences = 3 * STEPS * MICRO_BATCHES * accelerator.num_processes
data = [torch.randint(VOCABULARY, (random.randint(4, 60),)) for _ in range(sentences)]
model = nn.Sequential(nn.Embedding(VOCABULARY, 16), nn.Tanh(), nn.Linear(16, VOCABULARY))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
loader = DataLoader(data, batch_size=3, shuffle=True, collate_fn=collate)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

batches = iter(loader)
for _ in range(STEPS):
    window = [next(batches) for _ in range(MICRO_BATCHES)]
    tokens = accelerator.gather(sum((words[:, 1:] != PAD).sum() for words in window)).sum()
    for words in window:
        with accelerator.accumulate(model):
            logits = model(words[:, :-1].clamp(min=0)).flatten(0, 1)
            loss = F.cross_entropy(logits, words[:, 1:].flatten(), reduction="sum") / tokens
            # Accelerate divides by the micro-batches, and DDP by the processes: take both back.
            accelerator.backward(loss * MICRO_BATCHES * accelerator.num_processes)
            optimizer.step()
            optimizer.zero_grad()
accelerator.print(f"trained {STEPS} steps on {accelerator.num_processes} ranks")
