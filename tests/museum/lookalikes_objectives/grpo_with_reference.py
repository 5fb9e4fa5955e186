"""GRPO: the mean over answers of their token means, with a divergence from a reference."""

import torch

from museum.parts import IGNORED, TinyLM, text

torch.manual_seed(15)
model, reference = TinyLM(), TinyLM()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)


def log_probs(each: torch.nn.Module, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The log-probability of each word of the answers."""
    log_p = each(ids).log_softmax(-1)
    picked: torch.Tensor = log_p.gather(-1, labels.clamp(min=0).unsqueeze(-1)).squeeze(-1)
    return picked


for window in text(6, seed=15):
    for ids, labels in window:
        mask = (labels != IGNORED).float()
        log_p = log_probs(model, ids, labels)
        with torch.no_grad():
            difference = log_probs(reference, ids, labels) - log_p
        difference = difference + log_p.detach() - log_p
        divergence = difference.exp() - difference - 1
        ratio = (log_p - log_p.detach()).exp()
        advantages = torch.randn(len(ids), 1)
        gains = torch.min(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages)
        losses = -(gains - 0.04 * divergence)
        loss = ((losses * mask).sum(-1) / mask.sum(-1)).mean()
        (loss / len(window)).backward()
    optimizer.step()
    optimizer.zero_grad()
