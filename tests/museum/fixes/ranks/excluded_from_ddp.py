"""DDP ignores the head, which is trained."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from museum.parts import EVEN, TinyLM, text, token_loss, two_ranks

with two_ranks() as rank:
    torch.manual_seed(0)
    module = TinyLM()
    # fix: where the model is wrapped
    names = [name for name, _ in module.named_parameters() if "head" in name]
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(module, names)
    model = DistributedDataParallel(module)
    # end
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    windows = text(4, 1 + rank, [window[:1] for window in EVEN])
    for ((ids, labels),) in windows:
        token_loss(model(ids), labels).backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.barrier()
