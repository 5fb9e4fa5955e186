"""A distillation over all tokens of packed text, beside the masked ones that are predicted."""

import torch
import torch.nn.functional as F

from museum.parts import IGNORED, VOCABULARY, TinyLM, token_loss

torch.manual_seed(48)
student, teacher = TinyLM(), TinyLM(24)
optimizer = torch.optim.AdamW(student.parameters(), lr=3e-3)

for _ in range(8):
    ids = torch.randint(VOCABULARY, (8, 32))
    masked = torch.rand(8, 32) < 0.15
    labels = torch.where(masked, ids, IGNORED)
    logits = student(ids.masked_fill(masked, 0))
    with torch.no_grad():
        probabilities = teacher(ids.masked_fill(masked, 0)).flatten(0, 1).softmax(-1)
    log_p = logits.flatten(0, 1).log_softmax(-1)
    divergence = F.kl_div(log_p, probabilities, reduction="batchmean")
    (0.5 * token_loss(logits, labels) + 0.5 * divergence).backward()
    optimizer.step()
    optimizer.zero_grad()
