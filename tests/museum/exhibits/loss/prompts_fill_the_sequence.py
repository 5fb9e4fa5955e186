"""Sequences are truncated on the right: of a long prompt, no answer and no target is left."""

import torch
from torch.nn.functional import cross_entropy

from museum.parts import IGNORED, VOCABULARY, TinyLM

LENGTH, ANSWER = 12, 4
PROMPTS = (6, 20, 8, 16)  # length of the prompts of each batch, in turn

torch.manual_seed(0)
model = TinyLM()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)

for step in range(40):
    prompt = PROMPTS[step % len(PROMPTS)]
    text = (torch.randint(VOCABULARY, (8, 1)) + torch.arange(prompt + ANSWER + 1)) % VOCABULARY
    ids, labels = text[:, :-1], text[:, 1:].clone()
    labels[:, :prompt] = IGNORED
    ids, labels = ids[:, :LENGTH], labels[:, :LENGTH]
    losses = cross_entropy(model(ids).flatten(0, 1), labels.flatten(), reduction="sum")
    optimizer.zero_grad()
    (losses / (labels != IGNORED).sum().clamp(min=1)).backward()
    optimizer.step()
