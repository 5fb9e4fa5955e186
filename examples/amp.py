"""Mixed precision with a GradScaler: unscale, clip, step and update once per window.

gradledger check -- python examples/amp.py
"""

import torch
import torch.nn.functional as F
from torch import nn

STEPS, MICRO_BATCHES, VOCABULARY = 10, 4, 32

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
model = nn.Sequential(nn.Embedding(VOCABULARY, 16), nn.Tanh(), nn.Linear(16, VOCABULARY))
model = model.to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
scaler = torch.amp.GradScaler(device)

for _ in range(STEPS):
    for _ in range(MICRO_BATCHES):
        words = torch.randint(VOCABULARY, (3, 17), device=device)
        with torch.autocast(device, dtype=torch.float16):
            logits = model(words[:, :-1])
        # Micro-batches of equal size: the mean of their means is the mean over all tokens.
        loss = F.cross_entropy(logits.float().flatten(0, 1), words[:, 1:].flatten())
        scaler.scale(loss / MICRO_BATCHES).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
print(f"trained {STEPS} steps")
