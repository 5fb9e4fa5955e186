"""Ten batches an epoch, four to a step: the last step has two and is divided by four."""

import torch

from museum.parts import EVEN, TinyLM, sentences, token_loss

torch.manual_seed(18)
model = TinyLM()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
generator = torch.Generator().manual_seed(0)
dataloader = [sentences(EVEN[0][0], generator) for _ in range(10)]
gradient_accumulation_steps = 4
windows = []

for _ in range(3):
    for step, (ids, labels) in enumerate(dataloader):
        current = gradient_accumulation_steps
        (token_loss(model(ids), labels) / current).backward()
        if (step + 1) % gradient_accumulation_steps == 0 or step + 1 == len(dataloader):
            optimizer.step()
            optimizer.zero_grad()
    windows += [dataloader[i : i + 4] for i in range(0, 10, 4)]
