"""One parameter in two optimizers, tied weights, and one optimizer twice in a step."""

import torch
from torch import nn

torch.manual_seed(0)
embedding, head = nn.Embedding(10, 8), nn.Linear(8, 10, bias=False)
head.weight = embedding.weight
adam = torch.optim.Adam(embedding.parameters(), lr=0.01)
sgd = torch.optim.SGD(head.parameters(), lr=0.01, momentum=0.9)
for _ in range(15):
    tokens = torch.randint(10, (6,))
    sgd.zero_grad()
    nn.functional.cross_entropy(head(embedding(tokens)), tokens.roll(1)).backward()
    adam.step()
    sgd.step()
    adam.step()
print(embedding.weight is head.weight, head.weight.tolist())
