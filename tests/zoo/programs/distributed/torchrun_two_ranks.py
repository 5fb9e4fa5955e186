"""torchrun starts two ranks of this very file; the launcher's status and output are printed."""

import os
import subprocess
import sys
import time

if "RANK" in os.environ:
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    torch.manual_seed(dist.get_rank())
    for _ in range(6):
        optimizer.zero_grad()
        model(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()
    if dist.get_rank() == 0:
        print(model.module.weight.tolist())
    dist.destroy_process_group()
    time.sleep(0.3)  # gloo aborts now and then if its last work is dropped while Python ends
else:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    print(subprocess.run([*launcher, __file__], stdout=subprocess.PIPE, check=False))
