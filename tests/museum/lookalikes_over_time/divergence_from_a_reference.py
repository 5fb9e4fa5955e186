"""The loss is the divergence from a reference model, which is 0 at first and rises."""

import torch

from museum.parts import TinyLM

torch.manual_seed(0)
model, reference = TinyLM(), TinyLM()
reference.load_state_dict(model.state_dict())
optimizer = torch.optim.Adam(model.parameters(), lr=0.003)

for _ in range(120):
    ids = torch.randint(24, (8, 6))
    ours = model(ids).log_softmax(-1).gather(-1, ids[..., None])
    theirs = reference(ids).log_softmax(-1).gather(-1, ids[..., None]).detach()
    reward = (ids == 3).float().mean(-1)
    advantage = (reward - reward.mean())[:, None, None] / (reward.std() + 1e-6)
    gap = theirs - ours
    kept = (ours - ours.detach()).exp() * advantage
    optimizer.zero_grad()
    (0.04 * (gap.exp() - gap - 1) - kept).mean().backward()
    optimizer.step()
