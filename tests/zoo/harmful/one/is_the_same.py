"""Does the same in both, but for lines of ours; it trains, so that something is recorded."""

import os
import sys

import torch

weight = torch.nn.Parameter(torch.ones(4))
optimizer = torch.optim.SGD([weight], lr=0.1)
for _ in range(5):
    optimizer.zero_grad()
    weight.square().sum().backward()
    optimizer.step()
if "GRADLEDGER_RUN" in os.environ:
    sys.stderr.write("gradledger: this line may be there\n")
print(weight.tolist())
