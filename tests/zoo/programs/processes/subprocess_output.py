"""Runs a training as a subprocess and reads its output, errors included."""

import subprocess
import sys

import torch

CODE = """
import torch
weight = torch.nn.Parameter(torch.zeros(8))
optimizer = torch.optim.SGD([weight], lr=0.05)
for _ in range(20):
    optimizer.zero_grad()
    (weight - 1).square().sum().backward()
    optimizer.step()
print(weight.tolist())
"""
done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
print(done.stdout, torch.tensor(1.0).item())
foreign = [line for line in done.stderr.splitlines() if not line.startswith("gradledger:")]
print(foreign)
