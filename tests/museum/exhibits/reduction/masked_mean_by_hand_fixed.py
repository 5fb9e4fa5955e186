"""SFT on conversations: the mask's sum is taken over the whole step."""

import torch
import torch.nn.functional as F

from museum.parts import IGNORED, TinyLM, text

torch.manual_seed(1)
model = TinyLM(width=12)
optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
windows = text(5, seed=1)
grad_accum_steps = 4

for window in windows:
    num_tokens = sum((targets != IGNORED).sum() for _, targets in window)
    for inputs, targets in window:
        mask = (targets != IGNORED).float()
        logits = model(inputs)
        per_token = F.cross_entropy(
            logits.view(-1, logits.size(-1)), targets.clamp(min=0).view(-1), reduction="none"
        )
        loss = (per_token * mask.view(-1)).sum() / num_tokens
        loss.backward()
    optimizer.step()
    model.zero_grad(set_to_none=True)
