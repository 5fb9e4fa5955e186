"""DPO with a likelihood: a preference of each pair and a mean of chosen words, weighted."""

import torch
import torch.nn.functional as F

from museum.parts import EVEN, IGNORED, TinyLM, text

torch.manual_seed(16)
model, reference = TinyLM(), TinyLM()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)


def log_probs(each: torch.nn.Module, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The log-probability of each word of the answers."""
    log_p = each(ids).log_softmax(-1)
    picked: torch.Tensor = log_p.gather(-1, labels.clamp(min=0).unsqueeze(-1)).squeeze(-1)
    return picked * (labels != IGNORED)


for window, other in zip(text(6, 16, EVEN), text(6, 17, EVEN), strict=True):
    for (ids, labels), (worse, worse_labels) in zip(window, other, strict=True):
        chosen = log_probs(model, ids, labels)
        margin = chosen.sum(-1) - log_probs(model, worse, worse_labels).sum(-1)
        with torch.no_grad():
            known = log_probs(reference, ids, labels).sum(-1)
            known -= log_probs(reference, worse, worse_labels).sum(-1)
        preference = -F.logsigmoid(0.1 * (margin - known)) * 0.9
        preference = preference - F.logsigmoid(-0.1 * (margin - known)) * 0.1
        loss = preference.mean() - 0.2 * chosen.sum() / (labels != IGNORED).sum()
        (loss / len(window)).backward()
    optimizer.step()
    optimizer.zero_grad()
