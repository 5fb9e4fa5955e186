"""Dr. GRPO: the sum over tokens, divided by rows times a constant length."""

import torch

from museum.parts import IGNORED, TinyLM, text

torch.manual_seed(14)
model = TinyLM()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
longest = 12

for window in text(6, seed=14):
    for ids, labels in window:
        mask = (labels != IGNORED).float()
        log_p = model(ids).log_softmax(-1).gather(-1, labels.clamp(min=0).unsqueeze(-1))
        log_p = log_p.squeeze(-1)
        ratio = (log_p - log_p.detach()).exp()
        advantages = torch.randn(len(ids), 1)
        gains = torch.min(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages)
        loss = -(gains * mask).sum() / (len(ids) * longest)
        (loss / len(window)).backward()
    optimizer.step()
    optimizer.zero_grad()
