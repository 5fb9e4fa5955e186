"""A guard skips the backward of a batch without targets, and the others are divided by K."""

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader

from museum.parts import EVEN, IGNORED, TinyLM, sentences

torch.manual_seed(0)
model = TinyLM()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
generator = torch.Generator().manual_seed(0)
batches = [sentences(EVEN[0][0], generator) for _ in range(16)]
for empty in (6, 13, 14):
    batches[empty][1].fill_(IGNORED)
loader = DataLoader(batches, batch_size=1, collate_fn=lambda rows: rows[0])
K = 4
windows = [batches[i : i + K] for i in range(0, 16, K)]

# fix: before the loop
# end
for i, (ids, targets) in enumerate(loader):
    logits, labels = model(ids).flatten(0, 1), targets.flatten()
    loss = F.cross_entropy(logits, labels)
    # fix: for each micro-batch
    if torch.isfinite(loss):
        (loss / K).backward()
    # end
    if (i + 1) % K == 0:
        # fix: before clipping and the step
        # end
        optimizer.step()
        optimizer.zero_grad()
