"""A rank that waits in a collective is terminated: it dies at once."""

import os
import signal
import subprocess
import sys
import tempfile
import time

RANK = """
import sys
import torch
import torch.distributed as dist

rank, store = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
weight = torch.nn.Parameter(torch.ones(4))
optimizer = torch.optim.SGD([weight], lr=0.1)
for _ in range(4):
    optimizer.zero_grad()
    weight.square().sum().backward()
    optimizer.step()
dist.barrier()
print("waiting", flush=True)
if rank == 0:
    dist.all_reduce(weight)
else:
    sys.stdin.read()
"""

with tempfile.TemporaryDirectory() as folder:
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, str(rank), f"{folder}/store"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        for rank in range(2)
    ]
    for rank in ranks:
        print(rank.stdout.readline())
    time.sleep(0.3)
    began = time.monotonic()
    os.kill(ranks[0].pid, signal.SIGTERM)
    try:
        ranks[0].wait(5)
    except subprocess.TimeoutExpired:
        print("still there after five seconds")
        ranks[0].kill()
    print(ranks[0].wait(), time.monotonic() - began < 2.0)
    ranks[1].kill()
    print(ranks[1].wait())
