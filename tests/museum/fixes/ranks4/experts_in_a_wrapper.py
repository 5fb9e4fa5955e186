"""DDP averages experts over their copies, although tokens of all ranks reach them."""

from contextlib import ExitStack
from itertools import chain

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from museum.parts import Experts, all_ranks, summed, text, token_loss, valid

evidence = "gradient_of_own"
with all_ranks() as rank:
    ranks = dist.get_world_size()
    groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]  # hold both experts together
    copies = [dist.new_group([0, 2]), dist.new_group([1, 3])]  # of one expert
    torch.manual_seed(0)
    plain = Experts().double()
    inner = Experts(groups[rank // 2], rank % 2)
    inner.load_state_dict(plain.state_dict(), strict=False)
    experts = DistributedDataParallel(inner.experts[str(rank % 2)], process_group=copies[rank % 2])
    inner.experts[str(rank % 2)] = experts
    names = [name for name, _ in inner.named_parameters() if name.startswith("experts")]
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(inner, names)
    model = DistributedDataParallel(inner)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    texts = [text(6, 3 * other) for other in range(ranks)]
    windows = [[*chain(*parts)] for parts in zip(*texts, strict=True)]  # of all ranks
    for window in texts[rank]:
        tokens = summed(sum(valid(labels) for _, labels in window))
        for i, (ids, labels) in enumerate(window):
            with ExitStack() as stack:
                for wrapper in (model, experts) if i + 1 < len(window) else ():
                    stack.enter_context(wrapper.no_sync())
                (token_loss(model(ids), labels, "sum") * ranks / tokens).backward()
        # fix
        # end
        optimizer.step()
        optimizer.zero_grad()
